"""What can go wrong between a task and its tuned programs."""

from __future__ import annotations

from ...zoo.errors import TchubError


class NoCandidateError(TchubError):
    """A task has no valid program on this target."""


class SearchEngineError(TchubError):
    """A search engine was asked for that the cost model does not serve."""


class ModelOutputError(TchubError):
    """A cost model gave scores that are not finite numbers."""


class TuningFailedError(TchubError):
    """Too many programs failed for tuning to go on."""


class InterruptedRunError(TchubError):
    """The user stopped the run; what was measured is kept."""

    exit_code = 130


class MissingXGBoostError(TchubError):
    """The stock cost model was asked for, and its package is not installed."""
