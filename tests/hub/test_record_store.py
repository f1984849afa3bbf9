"""The database on disk: its files are `JSONDatabase`'s, memory holds places alone, MetaSchedule can use it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tchub.hub.networks.operators import operator_module
from tchub.hub.networks.tasks import make_task
from tchub.hub.records.record_store import RecordStore
from tchub.hub.records.records import best_programs, open_database, programs_of
from tchub.hub.device.candidate import trace_json, tuning_record
from tchub.hub.search.candidates import random_candidates, tune_context
from tchub.hub.records.errors import RunStateError
from tchub.zoo.corpus.workloads import OperatorSpec
from tvm.s_tir import meta_schedule as ms

FAILED = 1e10
# Milliseconds of the small task's candidates, one that failed among them, two that are equally fast.
TIMES = (5.0, 2.0, FAILED * 1e3, 7.0, 2.0, 9.0)


@pytest.fixture
def records(small_task: Any, small_candidates: list[Any], target: Any) -> list[Any]:
    """Records of the small task with the latencies of `TIMES`."""
    workload = ms.database.Workload(small_task.mod)
    traces = [json.loads(candidate.trace) for candidate in small_candidates]
    pairs = zip(traces, TIMES, strict=False)
    return [tuning_record(small_task.mod, target, workload, trace, time / 1e3) for trace, time in pairs]


@pytest.fixture
def stored(tmp_path: Path, records: list[Any]) -> Callable[..., Any]:
    """A store of the records in `tmp_path`."""

    def make(kept: int = 64) -> Any:
        store: Any = RecordStore(tmp_path, kept)
        for record in records:
            store.put(record)
        return store

    return make


def facts(records: Any) -> list[tuple[str, list[float]]]:
    """What records say, for comparisons."""
    return [(json.dumps(trace_json(r.trace)), [float(s) for s in r.run_secs]) for r in records]


def test_metaschedules_database_opens_what_ours_wrote(stored: Any, tmp_path: Path, small_task: Any) -> None:
    ours = stored()
    theirs = ms.database.JSONDatabase(work_dir=str(tmp_path))
    assert len(theirs) == len(ours) == len(TIMES)
    workload = theirs.commit_workload(small_task.mod)
    assert facts(theirs.get_all_tuning_records()) == facts(ours.get_all_tuning_records())
    assert facts(theirs.get_top_k(workload, 9)) == facts(ours.get_top_k(ours.commit_workload(small_task.mod), 9))
    assert len((tmp_path / "database_workload.json").read_text().splitlines()) == 1, "no workload is written twice"


def test_a_program_that_changes_a_layout_is_stored_too(tmp_path: Path, target: Any) -> None:
    task = make_task(operator_module(OperatorSpec("b", "batch_matmul", {"batch": 2, "m": 64, "n": 64, "k": 32})), "b")
    traces = [json.loads(candidate.trace) for candidate in random_candidates(task, target, 4)]
    trace = next(trace for trace in traces if any(name == "TransformLayout" for name, *_ in trace[0]))
    store: Any = RecordStore(tmp_path)
    store.put(tuning_record(task.mod, target, store.workload_of(task.mod), trace, 1e-3))
    (ours,) = store.get_all_tuning_records()
    (theirs,) = ms.database.JSONDatabase(work_dir=str(tmp_path)).get_all_tuning_records()
    assert facts([ours]) == facts([theirs]) == [(json.dumps(trace), [1e-3])]
    assert json.loads(str(ours.target)) == json.loads(str(theirs.target)) == json.loads(str(target))
    assert ours.as_measure_candidate().sch.mod.script() == theirs.as_measure_candidate().sch.mod.script()


def test_ours_opens_what_metaschedules_database_wrote(tmp_path: Path, records: list[Any], small_task: Any) -> None:
    theirs = ms.database.JSONDatabase(work_dir=str(tmp_path))
    workload = theirs.commit_workload(small_task.mod)
    for record in records:
        theirs.commit_tuning_record(
            ms.database.TuningRecord(record.trace, workload, record.run_secs, record.target, record.args_info)
        )
    ours: Any = open_database(tmp_path)
    assert ours.has_workload(small_task.mod)
    assert facts(ours.get_all_tuning_records()) == facts(theirs.get_all_tuning_records())
    assert facts(ours.get_top_k(ours.workload_of(small_task.mod), 2)) == facts(theirs.get_top_k(workload, 2))
    ours.put(records[0])
    assert len(ms.database.JSONDatabase(work_dir=str(tmp_path))) == len(TIMES) + 1


@pytest.mark.parametrize("kept", [1, 2, 64])
def test_the_fastest_come_first_however_few_are_kept(stored: Any, tmp_path: Path, small_task: Any, kept: int) -> None:
    def top(store: Any, count: int) -> list[float]:
        workload = store.commit_workload(small_task.mod)
        return [round(1e3 * float(record.run_secs[0])) for record in store.get_top_k(workload, count)]

    for store in (stored(kept), RecordStore(tmp_path, kept)):
        assert top(store, 0) == []
        assert top(store, 3) == [2, 2, 5]
        assert top(store, 99) == [2, 2, 5, 7, 9], "failures are not offered"


def test_memory_holds_the_places_of_the_best_alone(stored: Any, small_task: Any) -> None:
    store = stored(2)
    workload = store.commit_workload(small_task.mod)
    store.get_top_k(workload, 99)
    assert [len(best) for best in store._best.values()] == [2]
    assert len(store._replayed) <= 2


def test_a_program_that_can_not_be_replayed_costs_itself_alone(stored: Any, tmp_path: Path, small_task: Any) -> None:
    stored()
    file = tmp_path / "database_tuning_record.json"
    lines = file.read_text().splitlines(keepends=True)
    assert lines[1].count("reduce0") > 0
    file.write_text("".join([lines[0], lines[1].replace("reduce0", "lv17_sum"), *lines[2:]]))
    store: Any = open_database(tmp_path)
    workload = store.commit_workload(small_task.mod)
    for records in (store.get_top_k(workload, 3), store.get_top_k(workload, 99)[:3]):
        assert [round(1e3 * float(record.run_secs[0])) for record in records] == [2, 5, 7], "one of two with 2 ms"
    assert len(store.latest(small_task.mod, 99)) == len(store.get_all_tuning_records()) == len(TIMES) - 1
    assert len(store.unfit) == 1


def test_programs_are_read_in_the_order_in_which_they_were_measured(stored: Any, small_task: Any) -> None:
    store = stored()
    assert [round(1e3 * seconds[0]) for _, seconds in programs_of(store, small_task.mod)] == [
        round(time) for time in TIMES
    ]
    assert [round(1e3 * float(record.run_secs[0])) for record in store.latest(small_task.mod, 2)] == [2, 9]


def test_a_workload_without_programs_has_none(tmp_path: Path, small_task: Any) -> None:
    store: Any = RecordStore(tmp_path)
    assert not store.has_workload(small_task.mod)
    assert list(store.programs(small_task.mod)) == []
    assert store.get_top_k(ms.database.Workload(small_task.mod), 4) == []
    assert len(best_programs(store, [small_task])) == 0


def test_a_damaged_line_is_named(stored: Any, tmp_path: Path) -> None:
    stored()
    path = tmp_path / "database_tuning_record.json"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0] + "[0, 1]\n" + "".join(lines[1:]))
    with pytest.raises(RunStateError, match="line 2"):
        open_database(tmp_path)


def test_the_evolutionary_search_takes_its_parents_from_it(
    stored: Any, small_task: Any, target: Any, records: list[Any]
) -> None:
    store = stored()
    asked: list[int] = []
    original = store._inst.get_top_k
    store._inst.get_top_k = lambda workload, k: (asked.append(k), original(workload, k))[1]
    strategy = ms.search_strategy.EvolutionarySearch(
        population_size=10, init_measured_ratio=0.5, init_min_unmeasured=4, genetic_num_iters=0, eps_greedy=0.0
    )
    context = tune_context(small_task, target, strategy, seed=1)
    spaces = context.generate_design_space()
    context.pre_tuning(8, 8, spaces, store, ms.cost_model.RandomModel())
    found = context.generate_measure_candidates()
    assert asked == [5], "half of the first generation"
    parents = {json.dumps(trace_json(record.trace)) for record in records}
    assert parents & {json.dumps(trace_json(candidate.sch.trace)) for candidate in found}
