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
