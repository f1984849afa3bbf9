"""MetaSchedule's database over a run store: what MetaSchedule asks for, and TVM's own files of it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tchub.hub.device.candidate import trace_json, tuning_record
from tchub.hub.networks.tasks import make_task
from tchub.hub.networks.workloads import operator_module
from tchub.hub.records.database import RunDatabase, export_json, programs_of
from tchub.hub.records.scope import MeasurementScope
from tchub.hub.records.store import FILE, RunStore
from tchub.hub.search.candidates import random_candidates
from tchub.zoo.corpus.workloads import OperatorSpec
from tvm.s_tir import meta_schedule as ms

FAILED = 1e10
# Milliseconds of the small task's candidates, one that failed among them, two that are equally fast.
TIMES = (5.0, 2.0, FAILED * 1e3, 7.0, 2.0, 9.0)


@pytest.fixture
def empty(tmp_path: Path, target: Any) -> Iterator[Any]:
    """A database without programs."""
    with RunStore(tmp_path / FILE, MeasurementScope.of("epyc-turin", "EPYC", target, 1)) as store:
        yield RunDatabase(store)


@pytest.fixture
def database(empty: Any, small_task: Any, small_candidates: list[Any], target: Any) -> Any:
    """A database of the small task's programs with the latencies of `TIMES`, committed as MetaSchedule does."""
    workload = empty.commit_workload(small_task.mod)
    for candidate, time in zip(small_candidates, TIMES, strict=False):
        trace = json.loads(candidate.trace)
        empty.commit_tuning_record(tuning_record(small_task.mod, target, workload, trace, [time / 1e3]))
    return empty


def facts(records: Any) -> list[tuple[str, list[float]]]:
    """What records say, for comparisons."""
    return [(json.dumps(trace_json(r.trace)), [float(s) for s in r.run_secs]) for r in records]


def times(records: Any) -> list[int]:
    return [round(1e3 * float(record.run_secs[0])) for record in records]


def test_metaschedules_database_opens_the_export(database: Any, tmp_path: Path, small_task: Any) -> None:
    for _ in range(2):  # a second export replaces the first
        export_json(database, tmp_path / "json")
    theirs = ms.database.JSONDatabase(work_dir=str(tmp_path / "json"))
    assert len(theirs) == len(database) == len(TIMES)
    workload = theirs.commit_workload(small_task.mod)
    assert sorted(facts(theirs.get_all_tuning_records())) == sorted(facts(database.get_all_tuning_records()))
    assert facts(theirs.get_top_k(workload, 9)) == facts(database.get_top_k(workload, 9))
    assert len((tmp_path / "json" / "database_workload.json").read_text().splitlines()) == 1


def test_a_program_that_changes_a_layout_is_stored_and_exported_too(empty: Any, tmp_path: Path, target: Any) -> None:
    task = make_task(operator_module(OperatorSpec("b", "batch_matmul", {"batch": 2, "m": 64, "n": 64, "k": 32})), "b")
    traces = [json.loads(candidate.trace) for candidate in random_candidates(task, target, 4)]
    trace = next(trace for trace in traces if any(name == "TransformLayout" for name, *_ in trace[0]))
    workload = empty.commit_workload(task.mod)
    empty.commit_tuning_record(tuning_record(task.mod, target, workload, trace, [1e-3]))
    export_json(empty, tmp_path)
    (ours,) = empty.get_all_tuning_records()
    (theirs,) = ms.database.JSONDatabase(work_dir=str(tmp_path)).get_all_tuning_records()
    assert facts([ours]) == facts([theirs]) == [(json.dumps(trace), [1e-3])]
    assert json.loads(str(ours.target)) == json.loads(str(theirs.target)) == json.loads(str(target))
    assert ours.as_measure_candidate().sch.mod.script() == theirs.as_measure_candidate().sch.mod.script()
    assert list(map(str, ours.args_info)) == list(map(str, theirs.args_info))


def test_the_fastest_come_first(database: Any, small_task: Any, target: Any) -> None:
    for opened in (database, RunDatabase(database.store)):
        workload = opened.commit_workload(small_task.mod)
        assert opened.has_workload(small_task.mod)
        assert times(opened.get_top_k(workload, 0)) == []
        assert times(opened.get_top_k(workload, 3)) == [2, 2, 5]
        assert times(opened.get_top_k(workload, 99)) == [2, 2, 5, 7, 9], "failures are not offered"
        opened.commit_tuning_record(tuning_record(small_task.mod, target, workload, [[], []], [1e-9]))
        assert len(opened) == len(opened.get_all_tuning_records()) == len(TIMES), "nor the task as extracted"


def test_a_program_that_can_not_be_replayed_costs_itself_alone(database: Any, small_task: Any) -> None:
    trace = "(SELECT trace FROM programs WHERE mean IS NOT NULL ORDER BY mean LIMIT 1)"
    database.store._write(f"UPDATE programs SET trace = replace(trace, 'reduce0', 'lv17_sum') WHERE trace = {trace}")
    opened: Any = RunDatabase(database.store)
    workload = opened.commit_workload(small_task.mod)
    for _ in range(2):
        assert times(opened.get_top_k(workload, 3)) == [2, 5, 7], "one of two with 2 ms"
    assert times(opened.get_top_k(workload, 99)) == [2, 5, 7, 9]
    assert len(opened.latest(small_task.mod, 99)) == len(opened.get_all_tuning_records()) == len(TIMES) - 1
    assert len(opened.unfit) == 1


def test_programs_are_read_in_the_order_in_which_they_were_measured(database: Any, small_task: Any) -> None:
    ours = [round(1e3 * seconds[0]) if seconds else None for _, seconds in programs_of(database, small_task.mod)]
    assert ours == [5, 2, None, 7, 2, 9]
    assert times(database.latest(small_task.mod, 2)) == [2, 9]
