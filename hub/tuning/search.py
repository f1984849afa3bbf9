"""MetaSchedule's search, one object a task: design space, candidates, and a watched cost model."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.cost_model import PyCostModel

from .candidates import trace_json, trace_key, tune_context
from .errors import InterruptedRunError, NoCandidateError
from .interrupt import StopFlag

if TYPE_CHECKING:
    from .tasks import TuningTask


@dataclass(frozen=True)
class SearchSettings:
    """MetaSchedule's evolutionary search.

    Its own defaults are a population of 512 and 4 generations, which score 2,560 programs and take half a minute
    a round on one core: at 128 trials ten times as long as the measurements. A population of 128 and 3
    generations score 512 for each round of a few trials.

    Attributes:
        population_size: programs of one generation.
        init_measured_ratio: share of the first generation taken from the database.
        init_min_unmeasured: random programs that the first generation needs at least.
        max_fail_count: attempts at those.
        genetic_num_iters: generations.
        genetic_mutate_prob: chance that a parent is mutated.
        genetic_max_fail_count: attempts at a valid mutation.
        eps_greedy: share of the picks that is random.
    """

    population_size: int = 128
    init_measured_ratio: float = 0.2
    init_min_unmeasured: int = 50
    max_fail_count: int = 5
    genetic_num_iters: int = 3
    genetic_mutate_prob: float = 0.85
    genetic_max_fail_count: int = 10
    eps_greedy: float = 0.05

    def strategy(self) -> Any:
        """The search strategy object."""
        return ms.search_strategy.EvolutionarySearch(**asdict(self))


@derived_object
class WatchedCostModel(PyCostModel):
    """Passes everything on to another cost model, times it, and stops the search when the user asks."""

    def __init__(self, inner: Any, stop: StopFlag) -> None:
        super().__init__()
        self.inner = inner
        self.stop = stop
        self.seconds = 0.0
        self.scored = 0

    def predict(self, context: Any, candidates: list[Any]) -> np.ndarray:
        """The inner model's scores."""
        if self.stop.requested:  # TVM passes this on as a RuntimeError; `TaskSearch` knows what it means
            raise RuntimeError("stop requested")
        start = time.perf_counter()
        try:
            return self.inner.predict(context, candidates)
        finally:
            self.seconds += time.perf_counter() - start
            self.scored += len(candidates)

    def update(self, context: Any, candidates: list[Any], results: list[Any]) -> None:
        """Let the inner model learn."""
        start = time.perf_counter()
        self.inner.update(context, candidates, results)
        self.seconds += time.perf_counter() - start

    @property
    def unread(self) -> int:
        """Programs that a checkpoint could not be shown, because TVM could not lower them; 0 for other models."""
        return getattr(getattr(self.inner, "scorer", None), "unread", 0)

    def save(self, path: str) -> None:
        """Save the inner model."""
        self.inner.save(path)

    def load(self, path: str) -> None:
        """Load the inner model."""
        self.inner.load(path)


def search_threads() -> int:
    """Cores that this process may use: searching and measuring take turns."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _samples(schedule: Any) -> bool:
    return any(inst.kind.name.startswith("Sample") for inst in schedule.trace.insts)


class TaskSearch:
    """Candidates of one task.

    Args:
        task: the task.
        target: a `tvm.target.Target`.
        settings: of the evolutionary search.
        seed: of the search.
        threads: that TVM searches with.
    """

    def __init__(self, task: TuningTask, target: Any, settings: SearchSettings, seed: int, threads: int) -> None:
        self.task = task
        context = tune_context(task, target, settings.strategy(), seed, threads)
        self._spaces = context.generate_design_space()
        if not self._spaces:
            raise NoCandidateError(
                f"task {task.name} has no valid program on this target",
                remedy="check the target's limits",
                task=task.name,
            )
        self.fixed = len(self._spaces) == 1 and not _samples(self._spaces[0])
        if self.fixed:  # an evolutionary search would replay its one program thousands of times
            context = tune_context(task, target, ms.search_strategy.ReplayTrace(), seed, 1)
        self.context = context
        self._known: set[str] = set()

    def start(self, trials: int, batch: int, database: Any, model: Any) -> None:
        """Begin: the search may take programs of `database` as parents."""
        workload = database.commit_workload(self.task.mod)
        for record in database.get_all_tuning_records():
            if record.workload.same_as(workload):
                self._known.add(trace_key(trace_json(record.trace)))
        size = 1 if self.fixed else batch
        self.context.pre_tuning(max(trials, size), size, self._spaces, database, model)

    def candidates(self, limit: int, stop: StopFlag) -> list[Any]:
        """At most `limit` new candidates; empty when the search has nothing new.

        Raises:
            InterruptedRunError: the user asked to stop while the search ran.
        """
        try:
            found = self.context.generate_measure_candidates() or []
        except Exception as error:
            if stop.requested:
                raise InterruptedRunError("interrupted while searching") from error
            raise
        fresh = []
        for candidate in found:
            key = trace_key(trace_json(candidate.sch.trace))
            if key not in self._known and len(fresh) < limit:
                self._known.add(key)
                fresh.append(candidate)
        return fresh

    def notify(self, candidates: Sequence[Any], results: Sequence[Any]) -> None:
        """Tell the search what its candidates were worth."""
        self.context.notify_runner_results(list(candidates), list(results))

    def untuned(self) -> Any:
        """The task as extracted, as a candidate."""
        from tvm.s_tir import Schedule

        args = ms.arg_info.ArgInfo.from_entry_func(self.task.mod, remove_preproc=True)
        return ms.MeasureCandidate(Schedule(self.task.mod), args)
