"""What can go wrong between a pool of candidates and an adapted model."""

from __future__ import annotations

from ..errors import TchubError


class BudgetError(TchubError):
    """The budget cannot be read, or allows no measurement."""


class UnknownSamplerError(TchubError):
    """No sampler has this name."""


class SamplingError(TchubError):
    """The sampler cannot choose: an empty pool, nothing left to pick, or scores that are not numbers."""


class NotTrainableError(TchubError):
    """The model knows no gradient, so a few labels cannot move it; fields: arch."""


class LabelError(TchubError):
    """The measurements cannot teach a ranking: NaN, not positive, all equal, or too few."""


class EmbeddingError(TchubError):
    """The network's score does not come out of a linear layer, so that nothing embeds a program; fields: shape."""


class SourceMismatchError(TchubError):
    """Programs of other features than the model or the target reads; fields: expected, found (columns)."""


class MethodError(TchubError):
    """No way of adapting has this name, or it lacks what it learns from; fields: method."""


class LocalModelError(TchubError):
    """No local model is of this kind; fields: given."""


class UpdateError(TchubError):
    """A fine-tuning was asked for a kind of update or of validation that there is not; fields: setting."""
