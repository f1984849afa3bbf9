"""Device families and their spec sheets (TCL table 1), read from the data files in `data/`.

Light on purpose: neither torch nor TVM is imported here.
"""

from .device import SCALES, Device, SourcedNumber, SpecSheet
from .registry import UnknownDeviceError, distance, get_device, known_device, list_devices, own_folder

__all__ = [
    "SCALES",
    "Device",
    "SourcedNumber",
    "SpecSheet",
    "UnknownDeviceError",
    "distance",
    "get_device",
    "known_device",
    "list_devices",
    "own_folder",
]
