"""What can be wrong with a recipe, a training set or a training run."""

from __future__ import annotations

from ..errors import MissingPackageError, TchubError


class TrainConfigError(TchubError):
    """A recipe with an unknown key or an impossible value; fields: key, source."""


class DatasetError(TchubError):
    """Arrays that do not fit together, or latencies that are no latencies; fields: what."""


class ResumeError(TchubError):
    """The saved state belongs to another run or cannot be read; fields: path, reason."""


class DivergedError(TchubError):
    """The loss became infinite or NaN; fields: epoch."""


class StartPointError(TchubError):
    """The weights to start from are of another architecture or features; fields: checkpoint."""


class NoContextError(TchubError):
    """The model cannot take measured programs as context; fields: arch."""


__all__ = [
    "DatasetError",
    "DivergedError",
    "MissingPackageError",
    "NoContextError",
    "ResumeError",
    "StartPointError",
    "TrainConfigError",
]
