"""Device families and their spec sheets (TCL table 1), read from the data files in `data/`.

Light on purpose: neither torch nor TVM is imported here.
"""

from .device import CpuSpec, Device, GpuSpec
from .registry import UnknownDeviceError, distance, get_device, known_device, list_devices, own_folder

__all__ = [
    "CpuSpec",
    "Device",
    "GpuSpec",
    "UnknownDeviceError",
    "distance",
    "get_device",
    "known_device",
    "list_devices",
    "own_folder",
]
