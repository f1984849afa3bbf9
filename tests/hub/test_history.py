"""What earlier runs measured: kept by device and target, taken over by the next run, never mixed."""

from __future__ import annotations

import sqlite3
from math import inf
from pathlib import Path
from typing import Any

import pytest
from fake_tuning import FakeMeasure, key_of, latency_of_key
from tchub.hub.device.measure import Measurement
from tchub.hub.records.errors import RunStateError
from tchub.hub.records.history import MOST_RECORDS, History, history_file, scope_of
from tchub.hub.records.trials import TrialLog, curve
from tchub.hub.search.interrupt import StopFlag
from tchub.hub.search.task_search import SearchSettings
from tchub.hub.tuning.session import SessionSettings, TuningSession, best_programs, open_database
from tvm.s_tir import meta_schedule as ms

SCOPE = {"device": "epyc-turin", "cpu_model": "EPYC", "target": "llvm", "threads": 1, "tvm_version": "0.27.0"}
SEARCH = SearchSettings(population_size=12, init_min_unmeasured=6, genetic_num_iters=1)


@pytest.fixture
def run(tmp_path: Path, small_task: Any, target: Any) -> Any:
    """Tunes the small task in a folder, with the history of a scope; gives the view and what was measured."""

    def tune(folder: str, scope: dict[str, Any] = SCOPE, trials: int = 4, **more: Any) -> Any:
        measure = FakeMeasure(**{name: more.pop(name) for name in ("fails", "failure") if name in more})
        settings = SessionSettings(trials=trials, batch=4, search=SEARCH, untuned=False, **more)
        model = ms.cost_model.RandomModel(seed=0)
        path = tmp_path / folder
        path.mkdir(exist_ok=True)
        with History(tmp_path / "history.sqlite", scope) as history:
            args = [small_task], target, model, measure, path, settings, StopFlag()
            return TuningSession(*args, history=history).run(), measure

    return tune


def test_a_new_run_begins_with_the_best_of_the_last_and_repeats_nothing(
    run: Any, tmp_path: Path, small_task: Any
) -> None:
    _, first = run("first")
    view, second = run("second")
    assert view.reused == 4
    assert 0 < view.done == second.count <= 4, "reused programs are no trials"
    assert not set(first.keys) & set(second.keys)
    best = min(map(latency_of_key, first.keys + second.keys))
    assert view.progress[0].best == pytest.approx(best)
    (record,) = best_programs(open_database(tmp_path / "second" / "database"), [small_task]).get_all_tuning_records()
    assert float(record.run_secs[0]) == pytest.approx(best, rel=1e-5), "what is fastest is compiled, reused or not"
    assert key_of(record.as_measure_candidate()) in {*first.keys, *second.keys}


@pytest.mark.parametrize("fact", SCOPE)
def test_another_device_target_or_release_shares_nothing(run: Any, fact: str) -> None:
    run("first")
    view, _ = run("second", SCOPE | {fact: "another"})
    assert view.reused == 0


def test_a_stored_trace_that_does_not_apply_costs_itself_alone(run: Any, tmp_path: Path, small_task: Any) -> None:
    _, first = run("first")
    fastest = min(map(latency_of_key, first.keys))
    with sqlite3.connect(tmp_path / "history.sqlite") as database:
        query = "UPDATE measurements SET trace = replace(trace, 'reduce0', 'lv17_sum') WHERE latencies = ?"
        assert database.execute(query, (f"[{fastest}]",)).rowcount == 1
    view, second = run("second")
    assert view.notes == [f"{small_task.name}: stored programs left out because they do not apply: 1"]
    assert view.done == second.count > 0
    taken = [trial.latency for trial in view.log.trials if trial.kind == "reused"]
    assert taken == sorted(map(latency_of_key, first.keys))[1:]


def test_reuse_can_be_switched_off(run: Any) -> None:
    run("first")
    view, _ = run("second", reuse=False)
    assert view.reused == 0
    assert not any(trial.kind == "reused" for trial in view.log.trials)


def test_a_run_that_goes_on_takes_over_once(run: Any, tmp_path: Path) -> None:
    run("first")
    before, _ = run("second")
    view, more = run("second", trials=8)
    assert view.reused == before.reused == MOST_RECORDS, "its own programs are no earlier run's"
    assert more.count == view.done - before.done > 0
    kinds = [trial.kind for trial in TrialLog(tmp_path / "second" / "trials.jsonl").trials]
    assert kinds.count("reused") == MOST_RECORDS
    assert kinds.count("tuned") == view.done <= 8, "a search may find fewer new programs than it was asked for"
    assert len(open_database(tmp_path / "second" / "database")) == view.done + MOST_RECORDS


def test_a_run_that_goes_on_reuses_none_of_its_own_programs(run: Any) -> None:
    run("first")
    view, _ = run("first", trials=8)
    assert view.done > 4
    assert view.reused == 0


def test_failures_are_remembered_as_such(run: Any, tmp_path: Path, small_task: Any) -> None:
    run("first", fails=lambda n: n % 2 == 1)
    with History(tmp_path / "history.sqlite", SCOPE) as history:
        latencies = [program.latency for program in history.of_task(small_task.task_id)]
    assert latencies == sorted(latencies)
    assert latencies.count(inf) == 2


@pytest.mark.parametrize(
    "failure", ["build: OSError: [Errno 28] No space left on device", "run_timeout: 10 s", "crash"]
)
def test_a_failure_of_the_machine_is_not_remembered_as_the_programs(
    run: Any, tmp_path: Path, small_task: Any, failure: str
) -> None:
    run("first", fails=lambda n: n % 2 == 1, failure=failure)
    with History(tmp_path / "history.sqlite", SCOPE) as history:
        assert [program.latency < inf for program in history.of_task(small_task.task_id)] == [True, True]


def test_a_run_that_begins_afresh_refuses_a_folder_of_one_that_did_not(run: Any) -> None:
    run("first")
    run("second")
    with pytest.raises(RunStateError, match="began with programs of earlier runs") as caught:
        run("second", reuse=False, trials=8)
    assert "--no-reuse" in str(caught.value.remedy)


def test_the_curve_begins_with_what_was_reused(run: Any, small_task: Any) -> None:
    run("first")
    view, _ = run("second")
    points = curve(view.log.trials, {small_task.task_id: 1.0}, {})
    assert points[0].trial == 1
    assert points[-1].latency == pytest.approx(view.progress[0].best)


def test_a_scope_names_all_that_latencies_depend_on(target: Any, target_dict: dict[str, Any]) -> None:
    scope = scope_of("epyc-turin", "AMD EPYC", target, 1)
    assert set(scope) == set(SCOPE)
    assert scope == scope_of("epyc-turin", "AMD EPYC", target_dict, 1), "a target is what it means"
    assert scope != scope_of("epyc-turin", "AMD EPYC", target, 2)
    assert scope != scope_of("epyc-turin", "AMD EPYC", "nvidia/nvidia-t4", 1)


def test_what_adapt_measured_is_known_to_tune(
    tmp_path: Path, small_task: Any, small_candidates: list[Any], target_dict: dict[str, Any]
) -> None:
    from tchub.hub.adaptation.tools import open_journal

    scope = {"device": "epyc-turin", "cpu_model": "AMD EPYC", "target": target_dict, "threads": 1, "tvm": "0.27.0"}
    with open_journal(tmp_path / "journal.sqlite", scope) as journal:
        journal.put(small_candidates[0], Measurement((1e-3,), None, None, 0.1, 0.1, 1.0))
    with History(history_file(), scope_of("epyc-turin", "AMD EPYC", target_dict, 1)) as history:
        (known,) = history.of_task(small_task.task_id)
    assert (known.key, known.latency) == (small_candidates[0].key, 1e-3)
