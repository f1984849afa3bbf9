"""The search over decisions as a MetaSchedule `SearchStrategy`, for a plain `tune_tir` or `tune_tasks`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.search_strategy import PySearchStrategy

from .cost_model import tvm_cost_model
from .decision_search import DecisionSearch
from .dqn import search_class
from .errors import TuningError
from .interrupt import StopFlag
from .settings import DecisionSettings

if TYPE_CHECKING:
    from ...zoo.models import Checkpoint
    from .schedules import ScheduleDatabase


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
