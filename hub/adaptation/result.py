"""What an adaptation came to: the pool, every pick with its reason, times, scores before and after, the verdict."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...zoo.adapt.guard import GuardResult
from ...zoo.adapt.stopping import CurvePoint, StopDecision
from .judge import ContextGain


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
    """How one task fared: candidates, programs learnt from and held out, failures among both."""

    task_id: str
    task: str
    op: str
    pool: int
    learn: int
    hold_out: int
    failed: int


@dataclass(frozen=True)
class AdaptResult:
    """The result of `adapt`.

    Attributes:
        base: `name@version` of the checkpoint started from; base_reasons: why it was chosen, if no name was given.
        asked: that checkpoint's name or folder as it was asked for; None: nobody named it.
        workload, device, method, sampler, rounds, seed: what was asked for.
        target, threads: what programs were compiled for: a TVM target as a dictionary, and their threads.
        first_sampler: what picked round 0.
        sources: further checkpoints, and corpora; start: what learning began with, and why.
        learning: the method that made the model, the share of the way from the start that was taken, cross-validated
            accuracies of all that were tried, and why it was chosen.
        curve: of the budget `auto`, what it decided on: a point for each round; stop: its last decision.
        budget: as it was written, and what that comes to where the pool has fewer programs; pool_size: candidates;
            measured: programs measured, failures included; failed: how many failed; reused: how many an earlier run
            had paid for.
        tasks: one entry a task; skipped: (task, reason) of tasks without a choice of programs.
        picks: every measured program.
        seconds: wall time by phase; measuring_seconds: what building and running the programs cost.
        before, after: top1, top5 and pairwise on the hold-out, of the base and of the adapted model, as tuning uses
            them: with the learnt programs of a task as context where a model takes any.
        zero_shot: the same of models that take context, without it; None for others.
        context: what context is worth to the model that the guard decided on; None where that takes none.
        guard: the comparison and its decision, `adapted` or `kept`.
        name, version, path: of the stored checkpoint; the base's name, and no path, when the base was kept.
        journal, corpus: where the measurements are.
    """

    base: str
    base_reasons: tuple[str, ...]
    asked: str | None
    workload: str
    device: str
    target: dict[str, Any]
    threads: int
    method: str
    sampler: str
    first_sampler: str
    rounds: int
    seed: int
    sources: tuple[str, ...]
    start: str
    learning: dict[str, Any]
    curve: tuple[CurvePoint, ...]
    stop: StopDecision | None
    budget: str
    pool_size: int
    measured: int
    failed: int
    reused: int
    tasks: tuple[TaskCount, ...]
    skipped: tuple[tuple[str, str], ...]
    picks: tuple[Pick, ...]
    seconds: dict[str, float]
    measuring_seconds: float
    before: dict[str, float]
    after: dict[str, float]
    zero_shot: dict[str, dict[str, float]] | None
    context: ContextGain | None
    guard: GuardResult
    name: str
    version: str | None
    path: Path | None
    journal: Path
    corpus: Path

    @property
    def adapted(self) -> bool:
        """Whether the adapted model replaced the base."""
        return self.guard.decision == "adapted"

    @property
    def update(self) -> str:
        """What to tune with (`tune`'s `update`): `none` where the model ranks worse with context than without."""
        return "none" if self.context is not None and self.context.harms else "auto"

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        paths = {key: str(value) if value else None for key, value in self._paths().items()}
        verdict = {"guard": self.guard.as_dict(), "decision": self.guard.decision, "update": self.update}
        return asdict(self) | verdict | paths

    def _paths(self) -> dict[str, Path | None]:
        return {"path": self.path, "journal": self.journal, "corpus": self.corpus}
