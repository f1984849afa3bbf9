"""Pools of candidates and the samplers that pick the programs to measure next.

A further sampler is a `Sampler` with `name` and `pick`, added to `SAMPLERS`.
"""

from ..errors import AdaptError
from .pool import Pool, Reason, Selection
from .predictions import MeasuringCost, PoolPredictions
from .rdu import RDUPlusSampler, RDUSampler
from .sampler import FasorSampler, RandomSampler, Sampler, StrataSampler, StratifiedSampler

_ALL = (RandomSampler, StratifiedSampler, FasorSampler, RDUSampler, RDUPlusSampler, StrataSampler)
SAMPLERS: dict[str, type[Sampler]] = {cls.name: cls for cls in _ALL}


def create_sampler(name: str | Sampler) -> Sampler:
    """Make a sampler by name; an instance is passed through.

    Raises:
        AdaptError: no sampler has this name.
    """
    if not isinstance(name, str):
        return name
    if name not in SAMPLERS:
        raise AdaptError(f"no sampler is called {name!r}", remedy=f"choose one of: {', '.join(SAMPLERS)}", sampler=name)
    return SAMPLERS[name]()


__all__ = [
    "SAMPLERS",
    "FasorSampler",
    "MeasuringCost",
    "Pool",
    "PoolPredictions",
    "RDUPlusSampler",
    "RDUSampler",
    "RandomSampler",
    "Reason",
    "Sampler",
    "Selection",
    "StrataSampler",
    "StratifiedSampler",
    "create_sampler",
]
