"""What to measure next: the sampler interface and its kinds.

A further sampler is a `Sampler` with `name` and `pick`, added to `SAMPLERS`.
"""

from ..errors import UnknownSamplerError
from .active import ALTSampler, BALTOSampler
from .budgets import op_budgets, task_budgets
from .fasor import FasorSampler
from .plain import RandomSampler, StratifiedSampler
from .pool import Pool
from .protocol import Ask, Sampler, finite_scores, normalise
from .rdu import RDUSampler
from .rdu_plus import RDUPlusConfig, RDUPlusSampler
from .reason import Reason, Selection
from .strata import StrataSampler

SAMPLERS: dict[str, type[Sampler]] = {
    cls.name: cls
    for cls in (
        RandomSampler,
        StratifiedSampler,
        ALTSampler,
        BALTOSampler,
        FasorSampler,
        RDUSampler,
        RDUPlusSampler,
        StrataSampler,
    )
}


def create_sampler(name: str | Sampler) -> Sampler:
    """A sampler by name; an instance is passed through.

    Raises:
        UnknownSamplerError: no sampler has this name.
    """
    if not isinstance(name, str):
        return name
    if name not in SAMPLERS:
        raise UnknownSamplerError(
            f"no sampler is called {name!r}", remedy=f"choose one of: {', '.join(SAMPLERS)}", sampler=name
        )
    return SAMPLERS[name]()


__all__ = [
    "SAMPLERS",
    "ALTSampler",
    "Ask",
    "BALTOSampler",
    "FasorSampler",
    "Pool",
    "RDUPlusConfig",
    "RDUPlusSampler",
    "RDUSampler",
    "RandomSampler",
    "Reason",
    "Sampler",
    "Selection",
    "StrataSampler",
    "StratifiedSampler",
    "create_sampler",
    "finite_scores",
    "normalise",
    "op_budgets",
    "task_budgets",
]
