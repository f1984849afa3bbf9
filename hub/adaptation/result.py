"""The result of an adaptation: what was asked for, measured and learnt, and the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...zoo.adapt.budget import LearningPoint, StopDecision
from ...zoo.adapt.guard import Judgement

DRAWN = "measured hold-out"


def target_text(target: Mapping[str, Any], threads: int) -> str:
    """Return what programs are compiled for, in a few words."""
    if target.get("kind") == "cuda":
        return f"cuda {target['arch']}"
    cpu = str(target.get("mcpu", target.get("kind", "")))
    return f"{cpu}, {threads} thread{'s' if threads > 1 else ''}"


def top_text(metrics: dict[str, float]) -> str:
    """Return top-1 and, in brackets, top-5: how fast the programs that are put first are, 1 being best."""
    return f"{metrics['top1']:.3f} ({metrics['top5']:.3f})"


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
