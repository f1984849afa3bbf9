"""Errors of models and checkpoints; every one has a remedy."""

from ..errors import TchubError


class ModelConfigError(TchubError):
    """An architecture was asked for with unknown or impossible settings."""


class CheckpointError(TchubError):
    """A checkpoint is missing, cannot be written, or needs another release of tchub; fields: path."""


class CorruptCheckpointError(CheckpointError):
    """A file is truncated, malformed, oversized, or does not hold the tensors that its config promises."""
