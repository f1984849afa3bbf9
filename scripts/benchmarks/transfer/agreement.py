"""Which sources to learn from, by how well their own models order a few labels of the target (papers: TCL, table 5)."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tchub.zoo.adapt.continual import learning_order
from tchub.zoo.devices import Device
from tchub.zoo.models import CostModel
from tchub.zoo.training import RankingDataset, evaluate_model

# Rank agreement, -1 to 1, below which a source misleads; share of the best source's below which it dilutes.
LEAST_AGREEMENT, LEAST_SHARE = 0.05, 0.5


def rank_agreement(model: CostModel, labels: RankingDataset) -> float:
    """Return how far a model orders the target's labels rightly: 1 always, 0 as a coin, -1 never.

    Kendall's tau over the pairs that are apart by more than the noise, mean over tasks; NaN without such a pair.
    """
    return 2 * evaluate_model(model, labels)["pairwise"] - 1


def agreeing_sources(target: Device, devices: Mapping[str, Device], agreement: Mapping[str, float]) -> list[str]:
    """Return the sources to learn, the one that agrees best last; those without a measured agreement come first."""
    known = {name: value for name, value in agreement.items() if not math.isnan(value)}
    least = max(LEAST_AGREEMENT, LEAST_SHARE * max(known.values(), default=0.0))
    order = [name for name in learning_order(target, devices) if devices[name].kind == target.kind]
    unmeasured = [name for name in order if name not in known]
    # Of equal agreement the device that is more like the target comes last.
    return unmeasured + sorted((name for name in order if known.get(name, -1.0) >= least), key=lambda name: known[name])
