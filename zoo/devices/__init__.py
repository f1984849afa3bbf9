"""Device families and their spec sheets (TCL table 1), read from the data files in `data/`.

Light on purpose: neither torch nor TVM is imported here.
"""

from .device import CpuSpec, Device, GpuSpec, SpecSheet
from .registry import Distance, UnknownDeviceError, distance, get_device, list_devices, own_folder

__all__ = [
    "CpuSpec",
    "Device",
    "Distance",
    "GpuSpec",
    "SpecSheet",
    "UnknownDeviceError",
    "distance",
    "get_device",
    "list_devices",
    "own_folder",
]
