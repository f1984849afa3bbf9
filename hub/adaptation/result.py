"""The result of an adaptation: the verdict of the hold-out, every pick with its reason, the stored checkpoint."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...zoo.adapt.budget import LearningPoint, StopDecision
from ...zoo.adapt.guard import GuardResult, compare
from ...zoo.models import ContextModel, CostModel
from ...zoo.training import RankingDataset, evaluate_scores
from ...zoo.training.evaluation import informed_scores


@dataclass(frozen=True)
class ModelFeatures:
    """A model, and features (N, rows, width) of the hold-out and of the programs learnt from, as it sees them."""

    model: CostModel
    held: np.ndarray
    known: np.ndarray

    def scores(self, held: RankingDataset, known: RankingDataset) -> np.ndarray:
        """Return (H,) scores of the hold-out, given the programs learnt from where the model takes context."""
        return informed_scores(self.model, self.held, held.group, known, self.known)


@dataclass(frozen=True)
class ContextGain:
    """Pairwise accuracy on the hold-out without the programs learnt from, and with those of each task as context.

    Attributes:
        without, given: the two accuracies, of the model that tuning will use.
        interval: bounds of `given - without` at `level`, e.g. 0.9, computed as the guard computes its own.
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
    """The comparison of base and adapted model on the hold-out, as tuning would use either of them.

    Attributes:
        guard: the comparison and its decision, `adapted` or `kept`.
        before, after: top1, top5 and pairwise of base and adapted model, with the learnt programs of a task as context
            where a model takes any: tuning hands them over, so the verdict says whether new weights help beyond that.
        zero_shot: of both without context, by `before` and `after`; None where neither takes any.
        context: what context is worth to the model that the guard decided on; None where that takes none.
    """

    guard: GuardResult
    before: dict[str, float]
    after: dict[str, float]
    zero_shot: dict[str, dict[str, float]] | None = None
    context: ContextGain | None = None


def judge(
    base: ModelFeatures,
    adapted: ModelFeatures,
    held: RankingDataset,
    known: RankingDataset,
    gain: float | None,
    seed: int,
) -> Judgement:
    """Compare two models on the held-out programs, given those learnt from and the cross-validated gain.

    Raises:
        LabelError: the hold-out has no order to judge by.
    """
    views = {"before": base, "after": adapted}
    scores = {name: view.scores(held, known) for name, view in views.items()}
    guard = compare(scores["before"], scores["after"], held.latency, held.group, seed=seed, learnt_gain=gain)
    zero_shot = context = None
    if any(isinstance(view.model, ContextModel) for view in views.values()):
        zero_shot = {name: _metrics(view.model.score(view.held), held) for name, view in views.items()}
    name = "after" if guard.decision == "adapted" else "before"
    if isinstance(views[name].model, ContextModel):
        plain = views[name].model.score(views[name].held)
        worth = compare(plain, scores[name], held.latency, held.group, seed=seed)
        context = ContextGain(worth.base, worth.adapted, worth.interval, worth.level)
    return Judgement(guard, _metrics(scores["before"], held), _metrics(scores["after"], held), zero_shot, context)


def _metrics(scores: np.ndarray, held: RankingDataset) -> dict[str, float]:
    return evaluate_scores(scores, held.latency, held.group, held.task_weights)


def top_text(metrics: dict[str, float]) -> str:
    """Return top-1 and, in brackets, top-5: how fast the programs that are put first are, 1 being best."""
    return f"{metrics['top1']:.3f} ({metrics['top5']:.3f})"


@dataclass(frozen=True)
class Pick:
    """One measured program.

    Attributes:
        task_id, task, op: its task, the task's name and operator type; key: its name within the task.
        part: `learn` or `hold-out`.
        round: 0 for the first batch, then the sampler's rounds; None for the hold-out.
        diversity, uncertainty, total: why the sampler picked it; None for a random pick.
        latency: median of its repeats in seconds; None when it failed.
        error: None or the kind of failure.
    """

    task_id: str
    task: str
    op: str
    key: str
    part: str
    round: int | None
    diversity: float | None
    uncertainty: float | None
    total: float | None
    latency: float | None
    error: str | None


@dataclass(frozen=True)
class TaskCount:
    """Programs of one task: candidates, those learnt from and held out, failures among both."""

    task_id: str
    task: str
    op: str
    pool: int
    learn: int
    hold_out: int
    failed: int


@dataclass(frozen=True)
class AdaptSettings:
    """Where an adaptation began, and its settings as they were applied.

    Attributes:
        base: `name@version` of the checkpoint to beat; base_reasons: why it was chosen, if no name was given.
        asked: that checkpoint's name or folder as it was asked for; None: nobody named it.
        sources: further checkpoints, and corpora; start: what learning began with, and why.
        target, threads: what programs were compiled for.
        first_sampler: what picked round 0.
        budget: as it was written, and what that comes to where the pool has fewer programs.
    """

    base: str
    base_reasons: tuple[str, ...]
    asked: str | None
    sources: tuple[str, ...]
    start: str
    workload: str
    device: str
    target: dict[str, Any]
    threads: int
    method: str
    sampler: str
    first_sampler: str
    rounds: int
    seed: int
    budget: str


@dataclass(frozen=True)
class MeasuredPool:
    """The measurements of an adaptation.

    Attributes:
        pool_size: number of candidates.
        measured: number of programs, of which `failed` failed and `reused` were paid for by an earlier run.
        measuring_seconds: cost of building and running them.
        journal, corpus: the files that hold them.
    """

    pool_size: int
    measured: int
    failed: int
    reused: int
    measuring_seconds: float
    journal: Path
    corpus: Path


@dataclass(frozen=True)
class AdaptResult:
    """The result of `adapt`.

    Attributes:
        settings: where it began, and how; measurements: how many, what they cost, where they are.
        learning: the method that made the model, the share of the way from the start that was taken, cross-validated
            accuracies of all that were tried, and why it was chosen.
        curve: of the budget `auto`, what it decided on: a point for each round; stop: its last decision.
        tasks: one entry a task; skipped: (task, reason) of tasks without a choice of programs.
        picks: every measured program.
        seconds: wall time by phase.
        judgement: the comparison of base and adapted model on the hold-out.
        name, version, path: of the stored checkpoint; the base's name, and no path, when the base was kept.
    """

    settings: AdaptSettings
    measurements: MeasuredPool
    learning: dict[str, Any]
    curve: tuple[LearningPoint, ...]
    stop: StopDecision | None
    tasks: tuple[TaskCount, ...]
    skipped: tuple[tuple[str, str], ...]
    picks: tuple[Pick, ...]
    seconds: dict[str, float]
    judgement: Judgement
    name: str
    version: str | None = None
    path: Path | None = None

    @property
    def adapted(self) -> bool:
        """Whether the adapted model replaced the base."""
        return self.judgement.guard.decision == "adapted"

    @property
    def update(self) -> str:
        """What to tune with (`tune`'s `update`): `none` where the model ranks worse with context than without."""
        context = self.judgement.context
        return "none" if context is not None and context.harms else "auto"

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form: the fields of all parts on one level."""
        row = asdict(self)
        for part in ("settings", "measurements", "judgement"):
            row |= row.pop(part)
        guard = self.judgement.guard
        row |= {"guard": guard.as_dict(), "decision": guard.decision, "update": self.update}
        return {key: str(value) if isinstance(value, Path) else value for key, value in row.items()}
