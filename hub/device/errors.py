"""What can go wrong while measuring."""

from __future__ import annotations

from ...zoo.errors import TchubError


class WorkerStartError(TchubError):
    """The process that forks workers did not start."""


class MeasurementFailureRateError(TchubError):
    """Nearly every program failed: measuring on would waste the budget."""


class JournalError(TchubError):
    """The journal of measurements cannot be read or written."""


class NoCompilerError(TchubError):
    """This machine cannot link a shared library."""
