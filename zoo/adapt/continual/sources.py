"""From which devices a target should learn, how much, and in which order (papers: TCL, table 5)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ...devices import Device
from ...devices.registry import INCOMPATIBLE, Distance, distance
from ...models import CostModel
from ...training import RankingDataset, evaluate_model


@dataclass(frozen=True)
class SourceRules:
    """When a source is left out.

    Attributes:
        least_agreement: rank agreement with the target's labels, -1 to 1, below which a source misleads.
        least_share: share of the best source's agreement below which a source dilutes.
    """

    least_agreement: float = 0.05
    least_share: float = 0.5


@dataclass(frozen=True)
class Source:
    """A device that may teach the target.

    Attributes:
        name: of the source.
        distance: of the spec sheets.
        agreement: of its model's order with the target's labels, -1 to 1; None where it was not measured.
        weight: 0 to 1: its share of the best source's agreement, or by the spec sheet; 0 leaves it out.
        reason: of the weight, in words.
    """

    name: str
    distance: Distance
    agreement: float | None
    weight: float
    reason: str


def rank_agreement(model: CostModel, labels: RankingDataset) -> float:
    """How far a source's model orders the target's labels rightly: 1 always, 0 as a coin, -1 never.

    Kendall's tau over the pairs that are apart by more than the noise, mean over tasks; NaN without such a pair.
    """
    return 2 * evaluate_model(model, labels)["pairwise"] - 1


def choose_sources(
    target: Device,
    sources: Mapping[str, Device],
    agreement: Mapping[str, float] | None = None,
    rules: SourceRules | None = None,
) -> list[Source]:
    """Weighs and orders sources: the one most like the target comes last, so that it is learnt last.

    A measured agreement decides before any spec sheet: by the paper's rule, sources of the target's vendor alone,
    the wrong ones are left out where another vendor's device agrees (`python -m scripts.benchmarks transfer` has what that is worth).

    Args:
        target: the device to learn for.
        sources: by name.
        agreement: of each, `rank_agreement` of its model on a few labels of the target; those that lack one, or
            whose is NaN, are weighed by their `Distance`: rank, then gap. They come before those that were measured.
        rules: when a source is left out.

    Returns:
        All sources, those left out (weight 0) first: of another kind of device, or measured to mislead.
    """
    rules, agreement = rules or SourceRules(), agreement or {}
    known = {name: value for name, value in agreement.items() if not math.isnan(value)}
    best = max((known[name] for name in sources if name in known), default=0.0)
    found = [_weigh(name, distance(device, target), known.get(name), best, rules) for name, device in sources.items()]
    return sorted(found, key=lambda s: (s.weight > 0, s.agreement is not None, s.weight, _likeness(s.distance), s.name))


def _weigh(name: str, apart: Distance, agreement: float | None, best: float, rules: SourceRules) -> Source:
    def made(weight: float, reason: str) -> Source:
        return Source(name, apart, agreement, weight, reason)

    if not apart.compatible:
        return made(0.0, apart.reason)
    if agreement is None:
        return made(_likeness(apart), f"not measured; {apart.reason}")
    if agreement < rules.least_agreement:
        return made(0.0, f"its order agrees with the target's by {agreement:.2f} only")
    if agreement < rules.least_share * best:
        return made(0.0, f"its order agrees by {agreement:.2f}, the best source's by {best:.2f}")
    return made(agreement / best, f"its order agrees by {agreement:.2f}; {apart.reason}")


def _likeness(apart: Distance) -> float:
    """0 to 1, the greater the smaller the distance: a step of rank outweighs any gap, an infinite one too.

    Only devices of different kinds, which have no number in common, are at 0.
    """
    return (INCOMPATIBLE - apart.rank + 1 / (1 + apart.gap)) / (INCOMPATIBLE + 1)
