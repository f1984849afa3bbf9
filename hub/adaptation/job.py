"""What stays the same through one adaptation, and the pool and the measuring that follow from it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...zoo.corpus.workloads import SUITES
from ..search.errors import InterruptedRunError
from ..search.interrupt import StopFlag
from .least import check_count
from .measure import PoolMeasuring
from .name import LOCAL
from .pool import CandidatePool, build_pool
from .settings import AdaptProgress, AdaptSettings, Clock
from .sources import Sources
from .tools import Tools

if TYPE_CHECKING:
    from ..device.detect import LocalDevice


@dataclass(frozen=True)
class AdaptJob:
    """One adaptation.

    Attributes:
        sources: the checkpoints to start from and the corpora to learn from.
        local: this machine.
        workload: what was asked for.
        settings: budget, sampler, rounds, seed, method.
        threads: of a program; programs_per_task: candidates of a task.
        tools: how the machine is reached.
        variant: of the stored checkpoint's name, see `adapt_name`.
        scope: what must be equal for measurements to be reused.
    """

    sources: Sources
    local: LocalDevice
    workload: str
    settings: AdaptSettings
    threads: int
    programs_per_task: int
    tools: Tools
    variant: str = LOCAL
    scope: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        scope = {
            "device": self.local.device.name,
            "cpu_model": self.local.cpu_model,
            "target": self.local.target,
            "threads": self.threads,
            "tvm": self.tools.tvm_version(),
        }
        object.__setattr__(self, "scope", scope)

    @property
    def scope_id(self) -> str:
        """8 hex digits of the scope: the corpus of each has a folder of its own, since they may not mix."""
        return hashlib.sha256(json.dumps(self.scope, sort_keys=True).encode()).hexdigest()[:8]

    @property
    def to_rank(self) -> bool:
        """Whether the tasks are those of what will be tuned: a suite's stand for those of other networks."""
        return self.workload not in SUITES

    def build_pool(self, folder: Path, stop: StopFlag, progress: AdaptProgress, clock: Clock) -> CandidatePool:
        """Extract the tasks and make their candidates.

        Raises:
            BudgetError: however many candidates there are, it is too small.
            EmptyPoolError: no task has two candidates.
            InterruptedRunError: the user stopped it.
        """
        progress.start("tasks", 1)
        with clock("tasks"):
            tasks = self.tools.extract_tasks(self.workload, self.local.target)
        progress.advance()
        most = len(tasks) * self.programs_per_task
        if tasks and (count := self.settings.budget.programs(most)) is not None:
            check_count(self.settings.budget, count, f"{most} candidates at most")
        progress.start("candidates", len(tasks))

        def on_task() -> None:
            progress.advance()
            if stop.requested:
                raise InterruptedRunError(
                    "interrupted while making candidates", remedy="run the same command again: it goes on from there"
                )

        recipe = self.scope | {"seed": self.settings.seed, "count": self.programs_per_task}
        with clock("candidates"):
            pool = build_pool(
                tasks,
                lambda task: self.tools.make_candidates(
                    task, self.local.target, self.programs_per_task, self.settings.seed
                ),
                folder / "pool",
                recipe,
                on_task,
            )
        if (said := (budget := self.settings.budget).text_for(len(pool))) != str(budget):
            progress.note(f"there are fewer candidates than the budget: {said}")
        return pool

    def measuring(self, pool: CandidatePool, journal: Any, stop: StopFlag, progress: AdaptProgress) -> PoolMeasuring:
        """The measuring side of the session."""
        return PoolMeasuring(
            pool,
            lambda index: self.tools.rebuild(pool.tasks[pool.entries[index].task], pool.entries[index]),
            lambda: self.tools.open_measurer(self.local.target, self.threads, progress.note),
            journal,
            stop,
            lambda measurement: progress.advance(failed=measurement.error is not None),
        )
