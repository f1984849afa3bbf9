"""Errors of choosing a device, preparing it, and measuring on it."""

from __future__ import annotations

from ...zoo.errors import TchubError


class DeviceChoiceError(TchubError):
    """A `--device` or a number of threads that cannot be had. Fields: device, or cores and usable."""


class TargetError(TchubError):
    """A target that is none, or whose programs the device cannot run. Fields: target, missing, address."""


class DeviceSetupError(TchubError):
    """This machine cannot compile, link or start programs. Field: architecture."""


class NoServerError(TchubError):
    """No RPC server, or no tracker, to measure on. Fields: address, last."""


class MeasurementFailureRateError(TchubError):
    """Nearly every program failed: measuring on would waste the budget. Fields: failed, total, commonest."""
