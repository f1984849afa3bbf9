"""The result of an adaptation: what was asked for, measured and learnt, and the verdict."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...zoo.adapt.budget import LearningPoint, StopDecision
from ...zoo.adapt.guard import Judgement

DRAWN = "measured hold-out"


@dataclass(frozen=True)
class Pick:
    """One measured program: its task and name; `learn` or `hold-out`; why it was picked, and how it ran.

    `round` is 0 for the first batch and None for the hold-out; a random pick has no numbers, a failed one no latency.
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
        asked: its name or folder as it was asked for; None: nobody named it.
        sources: further checkpoints, and corpora; start: what learning began with, and why.
        first_sampler: what picked round 0; hold_out: which programs judge: `DRAWN`, or a corpus's test split.
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
    hold_out: str


@dataclass(frozen=True)
class MeasuredPool:
    """The candidates, the programs measured of them (`reused`: by an earlier run), their cost, and where they are.

    A corpus that was read has no journal.
    """

    pool_size: int
    measured: int
    failed: int
    reused: int
    measuring_seconds: float
    journal: Path | None
    corpus: Path


@dataclass(frozen=True)
class AdaptResult:
    """The result of `adapt`.

    Attributes:
        learning: the method that made the model, the share of the way from the start that was taken, cross-validated
            accuracies of all that were tried, and why it was chosen.
        curve: of the budget `auto` a point for each round; stop: its last decision.
        picks: programs measured; of a corpus, those learnt.
        skipped: (task, reason) of tasks without a choice of programs; seconds: wall time by phase.
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
        return self.judgement.guard.decision == "adapted"

    @property
    def update(self) -> str:
        """What to tune with (`tune`'s `update`): `none` where the model ranks worse with context than without."""
        context = self.judgement.context
        return "none" if context is not None and context.fell else "auto"

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form: the fields of all parts on one level."""
        row = asdict(self)
        for part in ("settings", "measurements", "judgement"):
            row |= row.pop(part)
        guard = self.judgement.guard
        row |= {"decision": guard.decision, "update": self.update}
        return {key: str(value) if isinstance(value, Path) else value for key, value in row.items()}

    def facts(self) -> Iterator[tuple[str, str]]:
        """Yield names and texts of what was done and of the verdict, for the terminal and the stored card."""
        judgement, settings, measured, learning = self.judgement, self.settings, self.measurements, self.learning
        guard, (low, high) = judgement.guard, judgement.guard.interval
        cpu = str(settings.target.get("mcpu", settings.target.get("kind", "")))
        target = f"{cpu}, {settings.threads} thread{'s' if settings.threads > 1 else ''}"
        target = f"cuda {settings.target['arch']}" if settings.target.get("kind") == "cuda" else target
        yield "device", f"{settings.device}, programs for {target}"
        tasks = f"{len(self.tasks)} tasks, {measured.pool_size:,} candidates"
        yield "workload" if measured.journal else "corpus", f"{settings.workload}, {tasks}, seed {settings.seed}"
        yield "budget", settings.budget
        if measured.journal:
            yield "measured", f"{measured.measured} programs ({measured.failed} failed, {measured.reused} reused)"
        rounds = len(self.curve) - 1 if self.curve else settings.rounds  # the first point is the first batch's
        yield "picked by", f"{settings.sampler}, {rounds} rounds after a first batch by {settings.first_sampler}"
        yield "method", f"{learning['method']} ({learning['reason']}), {learning['strength']:.0%} of the way"
        if settings.sources:
            yield "start", settings.start
            training = learning["training"]
            corpora = [f"learnt {', '.join(training['sources'])}"] if training.get("sources") else []
            corpora += [
                f"left out {name}, after which the base ranked the labels worse ({was['before']:.3f}, then "
                f"{was['after']:.3f})"
                for name, was in training.get("left_out", {}).items()
            ]
            if corpora:
                yield "corpora", "; ".join(corpora)
        gain = f"{guard.base:.3f} before, {guard.adapted:.3f} after, {guard.gain:+.3f}"
        gain += f" ({guard.level:.0%} interval {low:+.3f} to {high:+.3f})"
        gain = gain if guard.pairs else "unknown: no pair of the hold-out has an order"
        yield "pairwise", gain if judgement.zero_shot is None else f"{gain}, both given the programs learnt from"
        if judgement.zero_shot is not None and guard.pairs:
            before, after = (judgement.zero_shot[when]["pairwise"] for when in ("before", "after"))
            yield "zero-shot", f"pairwise {before:.3f} before, {after:.3f} after, given nothing"
        tops = (f"{scores['top1']:.3f} ({scores['top5']:.3f})" for scores in (judgement.before, judgement.after))
        yield "top-1 (top-5)", "{} before, {} after".format(*tops)
        yield "judged on", f"{settings.hold_out}: {guard.programs} programs of {guard.tasks} tasks"
        yield "because", guard.reason
        if judgement.context is not None and judgement.context.fell:
            yield "context", f"it harms: pairwise {judgement.context}; tune with --update {self.update}"
