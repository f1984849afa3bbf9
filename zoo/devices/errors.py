"""What can go wrong with a device name, a spec sheet or a hardware row."""

from __future__ import annotations

from ..errors import TchubError


class DeviceError(TchubError):
    """Root of the errors about devices."""


class UnknownDeviceError(DeviceError):
    """No device of this name. Fields: name, nearest."""


class BadDeviceError(DeviceError):
    """A device's data is not of the right form. Fields: where, field."""

    def __init__(self, message: str, *, remedy: str = "mend the file, or fetch it again", **fields: object) -> None:
        super().__init__(message, remedy=remedy, **fields)


class NewerDeviceFormatError(DeviceError):
    """The device's data was written by a newer release. Fields: where, found, supported."""


class HardwareRowError(DeviceError):
    """No hardware row of this width for this kind of device. Fields: device, width, expected."""
