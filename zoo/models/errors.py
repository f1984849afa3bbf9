"""What can be wrong with a model or a checkpoint, one class each, every one with a remedy."""

from __future__ import annotations

from ..errors import TchubError


class UnknownArchitectureError(TchubError):
    """No architecture of this name; fields: arch, known."""


class ModelConfigError(TchubError):
    """An architecture was asked for with unknown or impossible settings; fields: arch, setting."""


class NotFittedError(TchubError):
    """A model of trees that has none yet was asked to score or to be saved; fields: arch."""


class CheckpointError(TchubError):
    """Any checkpoint that may not be loaded; fields: path."""


class CheckpointNotFoundError(CheckpointError):
    """The folder or one of its two files is missing."""


class CorruptCheckpointError(CheckpointError):
    """A file is truncated, malformed, oversized, or does not hold the tensors its config promises."""


class NewerFormatError(CheckpointError):
    """The config was written by a later release; fields: path, found, supported."""


class FeatureSchemaError(CheckpointError):
    """The checkpoint reads features that this release does not make; fields: path, schema."""
