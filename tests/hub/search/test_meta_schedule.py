"""Each extension point of MetaSchedule alone, in a plain `tune_tir` with tchub's builder and runner."""

from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from fake_tuning import SMALL_SEARCH
from real_checkpoint import make_checkpoint
from tchub import hub
from tchub.hub.device.candidate import trace_json, trace_key
from tchub.hub.device.meta_schedule import BuilderRunner
from tchub.hub.networks.workloads import operator_module
from tchub.hub.records.store import FILE, home_file
from tchub.hub.search.design_slots import rescale
from tchub.hub.search.errors import TuningError
from tchub.hub.search.settings import DecisionSettings, DQNSettings
from tchub.zoo.corpus.tir import task_id
from tchub.zoo.corpus.workloads import OperatorSpec
from test_cost_model import tiny
from tvm import IRModule
from tvm.s_tir import meta_schedule as ms

TRIALS, BATCH = 6, 3


@pytest.fixture(scope="module")
def workers(shared_zygote: Any) -> Iterator[Any]:
    with BuilderRunner() as pair:
        yield pair


@pytest.fixture
def tune(workers: Any, target: Any, tmp_path: Path) -> Any:
    """Tunes with stock MetaSchedule, but for what is given."""

    def run(mod: Any, **parts: Any) -> Any:
        small = SMALL_SEARCH.strategy()
        settings = {"num_trials_per_iter": BATCH, "cost_model": "random", "strategy": small, "seed": 1} | parts
        pair = {"builder": workers.builder, "runner": workers.runner}
        return ms.tune_tir(mod, target, str(tmp_path / "work"), TRIALS, **pair, **settings)

    return run


def keys(database: Any) -> list[str]:
    return [trace_key(trace_json(record.trace)) for record in database.get_all_tuning_records()]


def test_the_builder_and_the_runner(tune: Any, small_task: Any, tmp_path: Path) -> None:
    database = tune(small_task.mod, strategy=ms.search_strategy.ReplayTrace())
    assert len(database) == TRIALS
    assert all(0 < float(s) < 1 for record in database.get_all_tuning_records() for s in record.run_secs)
    assert len((tmp_path / "work" / "database_tuning_record.json").read_text().splitlines()) == TRIALS


@pytest.mark.parametrize(
    ("shared", "dqn"),
    [(True, None), (False, DQNSettings(drawn=16, episodes=2))],
    ids=["with its cost model, bred", "alone, by a DQN"],
)
def test_the_search_strategy(tune: Any, small_task: Any, shared: bool, dqn: DQNSettings | None) -> None:
    model = hub.tvm_cost_model(make_checkpoint(), update="few-shot")
    parts = {"strategy": hub.search_strategy(model if shared else make_checkpoint(), DecisionSettings(dqn=dqn))}
    database = tune(small_task.mod, **parts, **({"cost_model": model} if shared else {}))
    assert len(set(keys(database))) == TRIALS, "no program twice"
    if shared:
        assert model.scorer.learner.programs == TRIALS, "each program is learnt once"


def test_the_schedules_of_another_database(tune: Any, small_task: Any) -> None:
    other = operator_module(OperatorSpec("other", "dense", {"m": 64, "n": 24, "k": 16}))
    # Of the same search: it takes no tiles over that exceed the vector registers, which stock's fastest may have.
    own = hub.search_strategy(make_checkpoint())
    schedules = hub.ScheduleDatabase.of(tune(other, strategy=own, database=ms.database.MemoryDatabase()))
    (_, schedule), *_ = schedules
    strategy = hub.search_strategy(make_checkpoint(), schedules=schedules)
    database = tune(small_task.mod, strategy=strategy, database=ms.database.MemoryDatabase())
    tiles = [tile for tile in schedule.decisions if isinstance(tile, tuple)]
    carried = [list(rescale(tile, extent)) for tile, extent in zip(tiles, (32, 24, 16), strict=True)]
    programs = [[tile for _, tile in trace_json(r.trace)[1]] for r in database.get_all_tuning_records()]
    assert len(schedules) == 1
    assert any(all(tile in program for tile in carried) for program in programs)


def test_a_checkpoint_of_statements_is_refused() -> None:
    with pytest.raises(TuningError, match="by their decisions alone"):
        hub.search_strategy(tiny("atformer"))


def test_the_task_scheduler(tune: Any, small_task: Any) -> None:
    softmax = operator_module(OperatorSpec("softmax", "softmax", {"rows": 64, "columns": 96}))
    both = {"first": small_task.mod["main"], "second": softmax["main"]}
    database = tune(IRModule(both), task_scheduler=hub.task_scheduler(), strategy=ms.search_strategy.ReplayTrace())
    tuned = {task_id(record.workload.mod) for record in database.get_all_tuning_records()}
    assert len(tuned) == 2, "every task has a round before any has a second"
    assert len(database) == TRIALS


def test_the_database(tune: Any, small_task: Any, target: Any, tmp_path: Path) -> None:
    def opened() -> Any:
        return hub.database(tmp_path / "records", target)

    tune(small_task.mod, database=opened())
    again = opened()
    assert (tmp_path / "records" / FILE).exists()
    assert home_file().exists(), "later runs of tchub begin with these programs"
    assert len(again) == TRIALS
    schedule = again.query_schedule(small_task.mod, target, "main")
    best = min(again.get_all_tuning_records(), key=lambda record: fmean(map(float, record.run_secs)))
    assert trace_json(schedule.trace) == trace_json(best.trace)
    ours = hub.search_strategy(make_checkpoint())
    for strategy in (ours, SMALL_SEARCH.strategy()):  # of the same seed
        before = len(again)
        tune(small_task.mod, strategy=strategy, database=again)
        assert len(set(keys(again))) == len(again) > before, "what was measured is not measured again"
