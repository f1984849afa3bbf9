"""The search of one task: MetaSchedule's, or ours in decision space."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tvm.s_tir import meta_schedule as ms

from ..device.candidate import trace_json, trace_key
from ..records.records import programs_of
from .candidates import tune_context, untuned_candidate
from .decision_search import DecisionSearch, DecisionSettings
from .errors import InterruptedRunError, NoCandidateError, SearchEngineError
from .interrupt import StopFlag
from .watched_model import WatchedCostModel

if TYPE_CHECKING:
    from ..networks.tasks import TuningTask
    from ..records.history import KnownProgram

ENGINES = ("auto", "decisions", "metaschedule")
# Batches of known programs alone that one question may come to, before the space is taken to hold no other.
MOST_ASKED = 8


@dataclass(frozen=True)
class SearchSettings:
    """Which search, and how much it looks at.

    MetaSchedule's own defaults are a population of 512 and 4 generations, which score 2,560 programs and take half
    a minute a round on one core: at 128 trials ten times as long as the measurements. A population of 128 and 3
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
        engine: `decisions` searches without TVM, for models that read primitives; `metaschedule` is TVM's
            evolutionary search, which all fields above are for; `auto` takes the first where the model can.
        decisions: of the search in decision space.

    Raises:
        ValueError: no such engine.
    """

    population_size: int = 128
    init_measured_ratio: float = 0.2
    init_min_unmeasured: int = 50
    max_fail_count: int = 5
    genetic_num_iters: int = 3
    genetic_mutate_prob: float = 0.85
    genetic_max_fail_count: int = 10
    eps_greedy: float = 0.05
    engine: str = "auto"
    decisions: DecisionSettings = field(default_factory=DecisionSettings)

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise ValueError(f"engine must be one of {', '.join(map(repr, ENGINES))}, not {self.engine!r}")

    def strategy(self) -> Any:
        """MetaSchedule's search strategy object."""
        own = {name: value for name, value in vars(self).items() if name not in ("engine", "decisions")}
        return ms.search_strategy.EvolutionarySearch(**own)


def make_search(
    task: TuningTask, target: Any, settings: SearchSettings, seed: int, threads: int, model: WatchedCostModel
) -> TaskSearch | DecisionSearch:
    """The search that suits the model.

    Raises:
        SearchEngineError: decisions were asked for, and the model does not read them.
        NoCandidateError: the task has no valid program on this target.
    """
    if settings.engine == "metaschedule" or (settings.engine == "auto" and not model.reads_decisions):
        return TaskSearch(task, target, settings, seed, threads)
    if not model.reads_decisions:
        raise SearchEngineError(
            "this cost model cannot rank programs by their decisions alone",
            remedy="choose a checkpoint that reads primitives or loop nests, or the engine metaschedule",
        )
    return DecisionSearch(task, target, settings.decisions, seed)


def _samples(schedule: Any) -> bool:
    return any(inst.kind.name.startswith("Sample") for inst in schedule.trace.insts)


class TaskSearch:
    """Candidates of one task by MetaSchedule's evolutionary search.

    Args:
        task: the task.
        target: a `tvm.target.Target`.
        settings: of the evolutionary search.
        seed: of the search.
        threads: that TVM searches with.
    """

    cheap = False  # a round takes seconds, however few programs are asked for

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
        self.waiting: tuple[float, ...] = ()  # MetaSchedule does not tell what it left
        self._known: set[str] = set()

    def start(self, trials: int, batch: int, database: Any, model: Any) -> None:
        """Begin: the search may take programs of `database` as parents."""
        self._known.update(trace_key(trace) for trace, _ in programs_of(database, self.task.mod))
        size = 1 if self.fixed else batch
        self.context.pre_tuning(max(trials, size), size, self._spaces, database, model)

    def teach(self, programs: Sequence[KnownProgram]) -> int:
        """Programs of earlier runs are not to be measured again; returns how many were not known."""
        unknown = {program.key for program in programs} - self._known
        self._known |= unknown
        return len(unknown)

    def candidates(self, limit: int, stop: StopFlag) -> list[Any]:
        """At most `limit` new candidates; empty when the search has nothing new.

        A small batch may hold nothing but programs of earlier runs while the space is full of others: then the search
        is asked again.

        Raises:
            InterruptedRunError: the user asked to stop while the search ran.
        """
        for _ in range(1 if self.fixed else MOST_ASKED):
            found = self._found(stop)
            if not found:
                break
            if fresh := self._fresh(found, limit):
                return fresh
        return []

    def _found(self, stop: StopFlag) -> list[Any]:
        try:
            return list(self.context.generate_measure_candidates() or [])
        except Exception as error:
            if stop.requested:
                raise InterruptedRunError("interrupted while searching") from error
            raise

    def _fresh(self, found: Sequence[Any], limit: int) -> list[Any]:
        """Those that were never measured, which from now on are known."""
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
        return untuned_candidate(self.task)


__all__ = ["SearchSettings", "TaskSearch", "WatchedCostModel", "make_search"]
