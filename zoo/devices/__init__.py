"""Device families and their spec sheets (TCL table 1), read from the data files in `data/`.

Light on purpose: neither torch nor TVM is imported here.
"""

from .distance import Distance, distance
from .errors import BadDeviceError, DeviceError, HardwareRowError, NewerDeviceFormatError, UnknownDeviceError
from .registry import get_device, list_devices, list_families
from .spec import CpuSpec, Device, GpuSpec, SpecSheet

__all__ = [
    "BadDeviceError",
    "CpuSpec",
    "Device",
    "DeviceError",
    "Distance",
    "GpuSpec",
    "HardwareRowError",
    "NewerDeviceFormatError",
    "SpecSheet",
    "UnknownDeviceError",
    "distance",
    "get_device",
    "list_devices",
    "list_families",
]
