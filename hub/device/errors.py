"""Errors of choosing a device, preparing it, and measuring on it."""

from __future__ import annotations

from ...zoo.errors import TchubError


class DeviceError(TchubError):
    """A device, target or number of threads that cannot be had, or a machine that cannot compile or start programs."""


class NoServerError(TchubError):
    """No RPC server, or no tracker, to measure on."""


class MeasurementFailureRateError(TchubError):
    """Nearly every program failed: measuring on would waste the budget. Fields: failed, total, commonest."""
