"""What can go wrong between compiling a bundle here and taking back what was measured there."""

from __future__ import annotations

from ...zoo.errors import TchubError


class BundleError(TchubError):
    """A bundle cannot be read, is damaged, or is of another format; fields: path."""


class BundleSizeError(TchubError):
    """One program alone is larger than the largest archive allowed; fields: limit."""


class BundleTargetError(TchubError):
    """The target is unknown, or nothing can be compiled for it here; fields: target."""


class BundleResultsError(TchubError):
    """Results do not belong to the bundle, or lines of them are not results.

    Fields: path, and `lines`: how many are bad, by kind.
    """


class BundleDeviceError(TchubError):
    """Results are said to be of a device that the bundle is not for, or that did not measure them.

    Fields: device, and `found`: what the bundle or the results say instead.
    """


class RuntimeFilesError(TchubError):
    """TVM's runtime libraries cannot be found or copied; fields: path."""
