"""Errors between a task and its tuned programs."""

from ...zoo.errors import TchubError


class NoCandidateError(TchubError):
    """A task has no valid program on this target. Field: task."""


class TuningError(TchubError):
    """A search or a tuning run cannot begin or go on as asked."""


class InterruptedRunError(TchubError):
    """The user stopped the run; what was measured is kept."""

    exit_code = 130

    def __init__(self, message: str, *, remedy: str = "run the same command again to go on", **fields: object) -> None:
        super().__init__(message, remedy=remedy, **fields)
