"""Adapting a model to a device: what to measure (samplers, budgets), how to learn from it, and if it helped.

`fine_tune` and `guard` need torch and are imported from their own modules; everything named here is light.
"""

from .budget import Budget, parse_budget
from .errors import (
    BudgetError,
    EmbeddingError,
    LabelError,
    NotTrainableError,
    SamplingError,
    UnknownSamplerError,
)
from .holdout import choose_holdout
from .sampling import (
    SAMPLERS,
    ALTSampler,
    BALTOSampler,
    FasorSampler,
    Pool,
    RandomSampler,
    RDUPlusSampler,
    RDUSampler,
    Reason,
    Sampler,
    Selection,
    StratifiedSampler,
    create_sampler,
)
from .view import MeasuringCost, ModelView

__all__ = [
    "SAMPLERS",
    "ALTSampler",
    "BALTOSampler",
    "Budget",
    "BudgetError",
    "EmbeddingError",
    "FasorSampler",
    "LabelError",
    "MeasuringCost",
    "ModelView",
    "NotTrainableError",
    "Pool",
    "RDUPlusSampler",
    "RDUSampler",
    "RandomSampler",
    "Reason",
    "Sampler",
    "SamplingError",
    "Selection",
    "StratifiedSampler",
    "UnknownSamplerError",
    "choose_holdout",
    "create_sampler",
    "parse_budget",
]
