"""What can go wrong while measuring."""

from __future__ import annotations

from ...zoo.errors import TchubError


class WorkerStartError(TchubError):
    """The process that forks workers did not start."""


class MeasurementFailureRateError(TchubError):
    """Nearly every program failed: measuring on would waste the budget."""


class NoCompilerError(TchubError):
    """This machine cannot link a shared library."""


class UnknownDeviceChoiceError(TchubError):
    """A `--device` that is neither `local` nor `rpc://host:port/key`. Field: device."""


class NoServerError(TchubError):
    """No RPC server, or no tracker, to measure on. Fields: address, last."""


class RemoteTargetError(TchubError):
    """What the target of an RPC device is cannot be known here, or does not fit its servers. Field: address."""


class LocalTargetError(TchubError):
    """A target whose programs this machine cannot run. Fields: target, missing: extensions that the CPU lacks."""


class NoCrossCompilerError(TchubError):
    """Programs for another architecture cannot be linked here. Field: architecture."""
