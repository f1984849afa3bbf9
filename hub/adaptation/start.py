"""Which of several checkpoints, or their average, an adaptation starts from: what ranks its first programs best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...zoo.adapt.continual import fisher_average, fisher_diagonal
from ...zoo.adapt.errors import SourceMismatchError
from ...zoo.training import RankingDataset, pairwise_accuracy
from ...zoo.training.metrics import count_pairs
from .sources import Sources
from .tools import Base

if TYPE_CHECKING:
    from ...zoo.models import CostModel

# Ordered pairs without which one more or less would turn the comparison of two sources.
MIN_PAIRS = 10


@dataclass(frozen=True)
class Start:
    """Where an adaptation starts.

    Attributes:
        model: the start.
        base: the checkpoint to beat, whose name the result takes.
        name: of what the start is made of.
        made_of: the checkpoints that it is, or is the average of.
        compared: names of all checkpoints that it was chosen among; empty where there was no choice.
        reason: why, in one sentence.
    """

    model: CostModel
    base: Base
    name: str
    made_of: tuple[Base, ...]
    reason: str = "it was asked for"
    compared: tuple[str, ...] = ()


def choose_start(sources: Sources, data: RankingDataset, seed: int) -> Start:
    """Score every checkpoint, and averages of them, on programs of the first batch.

    An average is weighed by labels of other tasks than it is scored on. Labels too few to compare by leave the first
    checkpoint where it is.

    Args:
        sources: two checkpoints or more.
        data: measured programs, of whose labels no checkpoint has learnt any: it would win by memory.
        seed: of the estimate that a merge needs.
    """
    first = sources.bases[0]
    if (pairs := _pairs(data)) < MIN_PAIRS:
        why = "was named" if sources.named else "is the first"
        reason = f"{first.entry.id}, which {why}: too few labels that no source has learnt ({pairs} ordered pairs)"
        return Start(first.checkpoint.model, first, first.entry.id, (first,), reason)
    found: list[tuple[float, str, CostModel, tuple[Base, ...]]] = []
    for base in sources.bases:
        model = base.checkpoint.model
        accuracy = pairwise_accuracy(model.score(data.features), data.latency, data.group)
        found.append((accuracy, base.entry.id, model, (base,)))
    found += _merged(sources, data, seed)
    beat = first if sources.named else max(found[: len(sources.bases)], key=lambda one: one[0])[3][0]
    _, name, model, made_of = max(found, key=lambda one: one[0])
    shown = ", ".join(f"{other} {accuracy:.3f}" for accuracy, other, _, _ in found)
    reason = f"{name} ranks the first {len(data)} programs that no source has learnt best (pairwise {shown})"
    return Start(model, beat, name, made_of, reason, tuple(base.entry.id for base in sources.bases))


def _pairs(data: RankingDataset) -> int:
    """Pairs of a task whose latencies are apart by more than the noise of measuring."""
    return sum(count_pairs(data.latency[members]) for members in data.members)


def _merged(sources: Sources, data: RankingDataset, seed: int) -> list[tuple[float, str, CostModel, tuple[Base, ...]]]:
    """The checkpoints as one, each weight by what it is worth to each; none where they cannot be averaged.

    What a weight is worth is told by the gradients on labels of the target: it is here that the merge must be good.
    A merge is scored on tasks whose labels had no part in it: one of either half of the tasks scores the other half.
    The merge that is returned is by all of them.
    """
    models = [base.checkpoint.model for base in sources.bases]
    tasks = np.random.default_rng([seed, 5]).permutation(np.unique(data.group))
    if len(tasks) < 2:
        return []
    first = np.isin(data.group, tasks[: len(tasks) // 2])
    scores = np.empty(len(data))
    try:
        for scored in (first, ~first):
            scores[scored] = _average(models, data.take(np.flatnonzero(~scored)), seed).score(data.features[scored])
        merged = _average(models, data, seed)
    except SourceMismatchError:
        return []
    accuracy = pairwise_accuracy(scores, data.latency, data.group)
    name = " + ".join(base.entry.id for base in sources.bases)
    return [(accuracy, name, merged, sources.bases)]


def _average(models: list[CostModel], data: RankingDataset, seed: int) -> CostModel:
    return fisher_average(models, [fisher_diagonal(model, data, seed=seed) for model in models])
