"""What earlier runs measured: taken over by the next run on the same device and target, and never measured again."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_tuning import SCOPE, FakeMeasure, key_of, latency_of_key, open_session, programs_in
from tchub.hub.device.measure import Measurement
from tchub.hub.records.database import best_programs
from tchub.hub.records.store import RunStateError, home_file, open_store
from tchub.hub.tuning.session import MOST_RECORDS


@pytest.fixture
def run(tmp_path: Path, small_task: Any, target: Any) -> Any:
    """Tunes the small task in a folder, sharing with a home; gives the view and what was measured."""

    def tune(folder: str, trials: int = 4, **more: Any) -> Any:
        measure = FakeMeasure(**{name: more.pop(name) for name in ("fails", "failure") if name in more})
        with_home = {"trials": trials, "untuned": False, "share": True} | more
        return open_session(tmp_path / folder, [small_task], target, measure, **with_home).run(), measure

    return tune


def test_a_new_run_begins_with_the_best_of_the_last_and_repeats_nothing(
    run: Any, tmp_path: Path, small_task: Any, target: Any
) -> None:
    _, first = run("first")
    session = open_session(tmp_path / "second", [small_task], target, second := FakeMeasure(), trials=4, share=True)
    view = session.run()
    assert view.reused == 4
    assert 0 < view.done <= 4 < second.count + 1, "reused programs are no trials"
    assert not set(first.keys) & set(second.keys[1:])
    best = min(map(latency_of_key, first.keys + second.keys[1:]))
    assert view.progress[0].best == pytest.approx(best)
    (record,) = best_programs(session.database, [small_task]).get_all_tuning_records()
    assert float(record.run_secs[0]) == pytest.approx(best, rel=1e-5), "the fastest is compiled, reused or not"
    assert key_of(record.as_measure_candidate()) in {*first.keys, *second.keys}


def test_a_stored_trace_that_does_not_apply_costs_itself_alone(run: Any, small_task: Any) -> None:
    _, first = run("first")
    fastest = min(map(latency_of_key, first.keys))
    with sqlite3.connect(home_file()) as database:
        query = "UPDATE programs SET trace = replace(trace, 'reduce0', 'lv17_sum') WHERE latencies = ?"
        assert database.execute(query, (f"[{fastest}]",)).rowcount == 1
    view, second = run("second")
    assert view.notes == [f"{small_task.name}: stored programs left out because they do not apply: 1"]
    assert view.done == second.count > 0
    taken = [program.latency for program in view.programs if program.strategy == "reused"]
    assert taken == sorted(map(latency_of_key, first.keys))[1:]


def test_reuse_can_be_switched_off(run: Any) -> None:
    run("first")
    view, _ = run("second", reuse=False)
    assert view.reused == 0
    assert not any(program.strategy == "reused" for program in view.programs)


def test_a_run_that_goes_on_takes_over_once(run: Any, tmp_path: Path) -> None:
    run("first")
    before, _ = run("second")
    view, more = run("second", trials=8)
    assert view.reused == before.reused == MOST_RECORDS, "its own programs are no earlier run's"
    assert more.count == view.done - before.done > 0
    assert len(programs_in(tmp_path / "second", "reused")) == MOST_RECORDS
    assert len(programs_in(tmp_path / "second", "tune")) == view.done <= 8, "a search may find fewer new programs"


def test_a_run_that_begins_afresh_refuses_a_folder_of_one_that_did_not(run: Any) -> None:
    run("first")
    run("second")
    with pytest.raises(RunStateError, match="began with programs of earlier runs") as caught:
        run("second", reuse=False, trials=8)
    assert "--no-reuse" in str(caught.value.remedy)


def test_programs_of_another_purpose_are_known_to_tune(
    run: Any, tmp_path: Path, small_candidates: list[Any], target: Any
) -> None:
    with open_store(tmp_path / "adapted", replace(SCOPE, target=str(target))) as store:
        store.put(small_candidates[0], Measurement((1e-3,), None, None, 0.1, 0.1, 1.0))
    view, measure = run("tuned")
    assert view.reused == 1
    assert small_candidates[0].key not in measure.keys
