"""Adapting a model to a device: what to measure (samplers, budgets), how to learn from it, and if it helped.

What needs torch is imported from its own module (`adapt_model`, `fine_tune`, `continual`); these names are light.
"""

from .budget import Budget, parse_budget
from .errors import AdaptError, LabelError
from .sampling import Pool, Sampler, create_sampler
from .sampling.pool import choose_holdout

__all__ = [
    "AdaptError",
    "Budget",
    "LabelError",
    "Pool",
    "Sampler",
    "choose_holdout",
    "create_sampler",
    "parse_budget",
]
