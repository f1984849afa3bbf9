"""The search engines of a task: MetaSchedule's evolutionary search, or tchub's over decisions, a SearchStrategy too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.search_strategy import PySearchStrategy

from ..device.candidate import trace_json, trace_key
from ..networks.transform.elementwise import cheapest_first
from ..records.database import programs_of
from .candidates import tune_context
from .cost_model import tvm_cost_model
from .decision_search import DecisionSearch
from .dqn import search_class
from .errors import InterruptedRunError, NoCandidateError, TuningError
from .interrupt import StopFlag
from .settings import DecisionSettings, DQNSettings, SearchSettings

if TYPE_CHECKING:
    from ...zoo.models import Checkpoint
    from ..networks.tasks import TuningTask
    from ..records.store import MeasuredProgram
    from .cost_model import SessionCostModel
    from .roofline import Roofline
    from .schedules import ScheduleDatabase

# Batches of known programs alone before the space counts as used up.
MOST_ASKED = 8


@dataclass
class TaskEngine:
    """A task with its search.

    Attributes:
        context: MetaSchedule's `TuneContext` of the task.
    """

    context: Any
    search: DecisionSearch | TaskSearch


def open_engine(
    task: TuningTask,
    target: Any,
    settings: SearchSettings,
    seed: int,
    threads: int,
    model: SessionCostModel,
    roofline: Roofline | None = None,
) -> TaskEngine:
    """Open the search that suits the model.

    Args:
        target: a `tvm.target.Target`.
        threads: that TVM searches with.
        roofline: of the device, which is part of what a deep Q-network learns from; None: not known.

    Raises:
        TuningError: decisions were asked for, and the model does not read them.
        NoCandidateError: the task has no valid program on this target.
    """
    decisions = model.reads_decisions and settings.engine != "metaschedule"
    if settings.engine in ("decisions", "dqn") and not decisions:
        raise TuningError(
            "this cost model cannot rank programs by their decisions alone",
            remedy="choose a checkpoint that reads primitives or loop nests, or the engine metaschedule",
        )
    replaying = decisions
    while True:
        strategy = ms.search_strategy.ReplayTrace() if replaying else settings.strategy()
        context = tune_context(task, target, strategy, seed, 1 if replaying else threads)
        schedules = cheapest_first(task.mod, context.generate_design_space() or ())
        if not schedules:
            raise NoCandidateError(
                f"task {task.name} has no valid program on this target",
                remedy="check the target's limits",
                task=task.name,
            )
        if decisions:
            postprocs = context.space_generator.postprocs
            own = _proposer(settings, roofline)
            search = search_class(own)(task.mod, schedules, postprocs, own, seed, target)
            return TaskEngine(context, search)
        fixed = len(schedules) == 1 and not _samples(schedules[0])
        if replaying or not fixed:
            return TaskEngine(context, TaskSearch(context, schedules, fixed))
        replaying = True  # an evolutionary search would replay its one program thousands of times


def _proposer(settings: SearchSettings, roofline: Roofline | None) -> DecisionSettings:
    """Return the settings of the search over decisions, with a deep Q-network where the engine asks for one."""
    dqn = settings.decisions.dqn or (DQNSettings() if settings.engine == "dqn" else None)
    if dqn is not None and roofline is not None:
        dqn = replace(dqn, ridge=roofline.flops / roofline.bandwidth)
    return replace(settings.decisions, dqn=dqn)


def _samples(schedule: Any) -> bool:
    return any(inst.kind.name.startswith("Sample") for inst in schedule.trace.insts)


class TaskSearch:
    """Candidates of one task by MetaSchedule's evolutionary search.

    Args:
        context: MetaSchedule's `TuneContext` of the task, with its search strategy.
        schedules: its design spaces.
        fixed: True for a task of one program.
    """

    cheap = False  # a round takes seconds, however few programs are asked for

    def __init__(self, context: Any, schedules: Sequence[Any], fixed: bool = False) -> None:
        self._context, self._schedules, self.fixed = context, schedules, fixed
        self.waiting: tuple[float, ...] = ()  # MetaSchedule does not tell what it left
        self._known: set[str] = set()

    def start(self, trials: int, batch: int, database: Any, model: Any) -> None:
        """Begin: the search may take programs of `database` as parents."""
        self._known.update(trace_key(trace) for trace, _ in programs_of(database, self._context.mod))
        size = 1 if self.fixed else batch
        self._context.pre_tuning(max(trials, size), size, self._schedules, database, model)

    def teach(self, programs: Sequence[MeasuredProgram]) -> int:
        """Take programs of earlier runs as known, so that none is measured again; returns how many are new."""
        unknown = {program.key for program in programs} - self._known
        self._known |= unknown
        return len(unknown)

    def suggest(self, schedules: ScheduleDatabase) -> None:
        """Leave the schedules of similar tasks aside: MetaSchedule's search begins with programs of its own task."""

    def unmeasured(self) -> list[Any]:
        """Return no program of a similar task."""
        return []

    def candidates(self, limit: int, stop: StopFlag) -> list[Any]:
        """Return at most `limit` new candidates; none when the search has nothing new.

        A small batch may hold nothing but programs of earlier runs while the space is full of others: then the search
        is asked again.

        Raises:
            InterruptedRunError: the user asked to stop while the search ran.
        """
        for _ in range(1 if self.fixed else MOST_ASKED):
            batch = self._generate(stop)
            if not batch:
                break
            if fresh := self._fresh(batch, limit):
                return fresh
        return []

    def notify(self, candidates: Sequence[Any], results: Sequence[Any]) -> None:
        """Learn the results of candidates."""
        self._context.notify_runner_results(list(candidates), list(results))

    def _generate(self, stop: StopFlag) -> list[Any]:
        try:
            return list(self._context.generate_measure_candidates() or [])
        except Exception as error:
            if stop.requested:
                raise InterruptedRunError("interrupted while searching") from error
            raise

    def _fresh(self, batch: Sequence[Any], limit: int) -> list[Any]:
        """Return those that were never measured, which from now on are known."""
        fresh = []
        for candidate in batch:
            key = trace_key(trace_json(candidate.sch.trace))
            if key not in self._known and len(fresh) < limit:
                self._known.add(key)
                fresh.append(candidate)
        return fresh


# In a plain `tune_tir` or `tune_tasks` -------------------------------------------------------------------


@derived_object
class DecisionStrategy(PySearchStrategy):
    """`DecisionSearch` in the form that MetaSchedule calls.

    Args:
        model: a cost model of `tvm_cost_model`, whose checkpoint reads primitives or loop nests.
        settings: of the search, and with `dqn` of what proposes its programs.
        learns: hand the results to the model; False where MetaSchedule does, which has the model as its cost model.
        schedules: of similar tasks, to begin with.
    """

    def __init__(
        self, model: Any, settings: DecisionSettings, learns: bool, schedules: ScheduleDatabase | None = None
    ) -> None:
        super().__init__()
        self._model, self._settings, self._learns, self._schedules = model, settings, learns, schedules
        self._context: Any = None
        self._search: DecisionSearch | None = None
        self._batch, self._left = 1, 0

    def _initialize_with_tune_context(self, context: Any) -> None:
        # Its own copies: the context holds this strategy, and TVM's reference counts know no cycles.
        self._mod, self._target, self._seed = context.mod, context.target, int(context.rand_state)
        self._postprocs = list(context.space_generator.postprocs)

    def pre_tuning(
        self, max_trials: int, num_trials_per_iter: int, design_spaces: list[Any], database: Any, cost_model: Any
    ) -> None:
        """Begin: the programs of the database are parents, and not measured again."""
        self._search = search_class(self._settings)(
            self._mod, list(design_spaces), self._postprocs, self._settings, self._seed, self._target
        )
        self._batch, self._left = int(num_trials_per_iter), int(max_trials)
        self._search.start(self._left, self._batch, database, self._model)
        if self._schedules:
            self._search.suggest(self._schedules)

    def post_tuning(self) -> None:
        """End."""
        self._search = None

    def generate_measure_candidates(self) -> list[Any] | None:
        """Return the next batch, best first; None at the end of the trials or of the space."""
        assert self._search is not None
        batch = self._search.candidates(min(self._batch, self._left), StopFlag()) if self._left > 0 else []
        self._left -= len(batch)
        return batch or None

    def notify_runner_results(self, measure_candidates: list[Any], results: list[Any]) -> None:
        """Learn the results of a batch."""
        assert self._search is not None
        self._search.notify(measure_candidates, results)
        if self._learns:
            context = ms.TuneContext(mod=self._mod, target=self._target, num_threads=1)
            self._model.update(context, measure_candidates, results)

    def clone(self) -> Any:
        """Return a strategy for another task, with the same model."""
        return DecisionStrategy(self._model, self._settings, self._learns, self._schedules)


def search_strategy(
    model: Checkpoint | str | Any, settings: DecisionSettings | None = None, schedules: ScheduleDatabase | None = None
) -> Any:
    """Return tchub's search over decisions, for `ms.tune_tir(..., strategy=...)` and its kin.

    Args:
        model: a loaded checkpoint, or a name such as `tilenet-epyc`, which then learns from what is measured; or a
            cost model of `tvm_cost_model` that MetaSchedule has as its `cost_model`, too.
        settings: of the search; `DecisionSettings(dqn=DQNSettings())` lets a deep Q-network propose the programs.
        schedules: of similar tasks, with which the search of a task begins; see `ScheduleDatabase`.

    Raises:
        TuningError: the checkpoint reads statements, for which every program must be lowered.
        TchubError: whatever the registry raises for a name.
    """
    shared = hasattr(model, "scorer")
    cost_model: Any = model if shared else tvm_cost_model(model)
    if not cost_model.reads_decisions:
        raise TuningError(
            "this cost model cannot rank programs by their decisions alone",
            remedy="choose a checkpoint that reads primitives or loop nests",
        )
    return DecisionStrategy(cost_model, settings or DecisionSettings(), not shared, schedules)
