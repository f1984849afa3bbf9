"""Who picks the programs of round 0, of which no label is known yet."""

from __future__ import annotations

from ...zoo.adapt.sampling import MedoidSampler, RandomSampler, RDUPlusSampler, Sampler, StratifiedSampler

# They look at what a model sees in programs, which a pretrained one does before there are labels.
_ASK_BASE = (MedoidSampler, RDUPlusSampler)


def first_sampler(sampler: Sampler) -> Sampler:
    """What picks round 0 for a sampler.

    Rand_Select of algorithm 1 (TCL), level over the tasks, since a task without a label teaches nothing. tchub's own
    samplers ask the base instead which programs stand for their task.
    """
    if isinstance(sampler, RandomSampler):
        return sampler
    return MedoidSampler() if isinstance(sampler, _ASK_BASE) else StratifiedSampler()


def asks_base(first: Sampler) -> bool:
    """Whether a first sampler looks at what the base sees in the pool."""
    return isinstance(first, MedoidSampler)
