"""The comparison of base and adapted model on the hold-out, as tuning would use either of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...zoo.adapt.guard import GuardResult, compare
from ...zoo.adapt.in_context import informed_scores, takes_context
from ...zoo.models import CostModel
from ...zoo.training import RankingDataset, evaluate_scores


@dataclass(frozen=True)
class Seen:
    """A model, and how it sees the programs: the base keeps its own device's hardware row.

    Attributes:
        model: the model.
        held: (H, rows, width) features of the hold-out; known: (K, rows, width) of the programs learnt from.
    """

    model: CostModel
    held: np.ndarray
    known: np.ndarray

    def plain_scores(self) -> np.ndarray:
        """(H,) scores of the hold-out, given nothing."""
        return self.model.score(self.held)

    def scores(self, held: RankingDataset, known: RankingDataset) -> np.ndarray:
        """(H,) scores of the hold-out, given the programs learnt from where the model takes context."""
        return informed_scores(self.model, self.held, held.group, known, self.known)


@dataclass(frozen=True)
class ContextGain:
    """What context is worth to the model that tuning will use, base or adapted, in pairwise accuracy on the hold-out.

    Attributes:
        without, given: the accuracy without the programs learnt from, and with those of each task as context.
        interval: bounds of `given - without` at `level`, found as the guard finds its own.
        level: of the interval, e.g. 0.9.
    """

    without: float
    given: float
    interval: tuple[float, float]
    level: float

    @property
    def harms(self) -> bool:
        """Whether the model ranks worse with context than without, beyond doubt."""
        return self.interval[1] < 0

    def __str__(self) -> str:
        low, high = self.interval
        return (
            f"pairwise {self.without:.3f} without the programs learnt from as context, {self.given:.3f} with them "
            f"({self.level:.0%} interval of the difference {low:+.3f} to {high:+.3f})"
        )


@dataclass(frozen=True)
class Judgement:
    """What the hold-out says.

    Attributes:
        guard: the comparison and its decision.
        before, after: metrics of base and adapted model, with the learnt programs of a task as context where a model
            takes any: tuning hands them over, so the verdict says whether new weights help beyond that.
        zero_shot: of both without context, by `before` and `after`; None where neither takes any.
        context: what context is worth to the model that the guard decided on; None where that takes none.
    """

    guard: GuardResult
    before: dict[str, float]
    after: dict[str, float]
    zero_shot: dict[str, dict[str, float]] | None
    context: ContextGain | None


def judge(
    base: Seen, adapted: Seen, held: RankingDataset, known: RankingDataset, learnt_gain: float | None, seed: int
) -> Judgement:
    """Compare two models.

    Args:
        base, adapted: the models.
        held: the held-out programs; known: those learnt from.
        learnt_gain: cross-validated gain, see the guard.
        seed: of the bootstrap.

    Raises:
        LabelError: the hold-out has no order to judge by.
    """
    pair = (base, adapted)
    before, after = (one.scores(held, known) for one in pair)
    guard = compare(before, after, held.latency, held.group, seed=seed, learnt_gain=learnt_gain)
    plain = None
    if any(takes_context(one.model) for one in pair):
        names = ("before", "after")
        plain = {name: _metrics(one.plain_scores(), held) for name, one in zip(names, pair, strict=True)}
    chosen, given = (adapted, after) if guard.decision == "adapted" else (base, before)
    return Judgement(
        guard, _metrics(before, held), _metrics(after, held), plain, _context_gain(chosen, given, held, seed)
    )


def top_text(metrics: dict[str, float]) -> str:
    """Top-1 and, in brackets, top-5 of `Judgement.before` or `after`: how fast what is put first is, 1 being best."""
    return f"{metrics['top1']:.3f} ({metrics['top5']:.3f})"


def _context_gain(chosen: Seen, given: np.ndarray, held: RankingDataset, seed: int) -> ContextGain | None:
    """As the guard compares, as if the context were what had been learnt."""
    if not takes_context(chosen.model):
        return None
    found = compare(chosen.plain_scores(), given, held.latency, held.group, seed=seed)
    return ContextGain(found.base, found.adapted, found.interval, found.level)


def _metrics(scores: np.ndarray, held: RankingDataset) -> dict[str, float]:
    return evaluate_scores(scores, held.latency, held.group, held.task_weights)
