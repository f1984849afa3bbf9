"""Who picks the programs of round 0, of which no label is known yet."""

from __future__ import annotations

from ...zoo.adapt.sampling import RandomSampler, RDUPlusSampler, Sampler, StrataSampler, StratifiedSampler

# They look at what a model says of programs, which a pretrained one does before there are labels.
_ASK_BASE = (StrataSampler, RDUPlusSampler)


def first_sampler(sampler: Sampler) -> Sampler:
    """What picks round 0 for a sampler.

    Rand_Select of algorithm 1 (TCL), level over the tasks, since a task without a label teaches nothing. tchub's own
    samplers ask the base instead, so that programs that it calls slow and fast are measured alike.
    """
    if isinstance(sampler, RandomSampler):
        return sampler
    return StrataSampler() if isinstance(sampler, _ASK_BASE) else StratifiedSampler()


def asks_base(first: Sampler) -> bool:
    """Whether a first sampler looks at what the base says of the pool."""
    return isinstance(first, StrataSampler)
