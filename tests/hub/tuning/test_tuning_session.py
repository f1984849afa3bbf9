"""A tuning session on one small task, and what it takes over of earlier runs: the real search, with a fake machine."""

import os
import signal
import sqlite3
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest
import tvm
from fake_tuning import SCOPE, FakeBuilder, FakeMeasure, FakeRunner, key_of, latency_of_key, open_session, programs_in
from real_checkpoint import make_checkpoint
from tchub.hub.device.errors import MeasurementFailureRateError
from tchub.hub.device.measure import Measurement
from tchub.hub.networks.tasks import make_task
from tchub.hub.records.database import best_programs
from tchub.hub.records.store import MeasuredProgram, RunStateError, home_file, open_store
from tchub.hub.search.cost_model import tvm_cost_model
from tchub.hub.search.errors import InterruptedRunError
from tchub.hub.search.interrupt import StopFlag
from tchub.hub.search.measuring import RunnerMeasure
from tchub.hub.search.roofline import Roofline
from tchub.hub.tuning.progress import curve
from tchub.hub.tuning.session import MOST_RECORDS, TuningSession
from tvm import te


@pytest.fixture(scope="module")
def one_program() -> Any:
    """A task whose design space holds one program."""
    x = te.placeholder((64,), name="x")
    y = te.compute((64,), lambda i: x[i] + 1.0, name="y")
    return make_task(tvm.IRModule({"main": te.create_prim_func([x, y])}), "add")


@pytest.fixture
def session(tmp_path: Path, small_task: Any, target: Any) -> Callable[..., TuningSession]:
    """Makes sessions in one folder, as calls of the same command do."""

    def make(measure: Any, tasks: Any = None, **more: Any) -> TuningSession:
        return open_session(tmp_path, tasks or [small_task], target, measure, **more)

    return make


def test_every_trial_is_in_the_log_and_the_database(session: Any, tmp_path: Path, small_task: Any) -> None:
    measure = FakeMeasure()
    view = session(measure).run()
    assert view.done == 12
    assert len(set(measure.keys[1:])) == 12, "the first is the untuned program; no program is measured twice"
    assert len(programs_in(tmp_path, "tune")) == 12
    best = min(latency_of_key(key) for key in measure.keys[1:])
    assert view.progress[0].best == best
    assert all(program.predicted is not None for program in view.tuned)
    assert [p.clock for p in view.tuned] == sorted(p.clock for p in view.tuned)
    assert set(view.untuned) == {small_task.task_id}
    assert view.phases["search"] > 0


def test_a_killed_search_over_decisions_goes_on_and_repeats_nothing(
    tmp_path: Path, small_task: Any, target: Any
) -> None:
    def tune(measure: FakeMeasure) -> Any:
        model = tvm_cost_model(make_checkpoint(), update="none")
        return open_session(tmp_path, [small_task], target, measure, model=model, untuned=False).run()

    def die(count: int) -> None:
        if count == 6:
            raise OSError("killed")

    first, second = FakeMeasure(after=die), FakeMeasure()
    with pytest.raises(OSError, match="killed"):
        tune(first)
    view = tune(second)
    assert view.done == 12
    assert second.count == 6
    assert len({*first.keys, *second.keys}) == 12
    assert all(task.scored for task in view.progress), "scores are set against latencies"
    assert len(programs_in(tmp_path, "tune")) == 12


def test_a_choice_without_measuring_takes_what_was_measured_before(session: Any, small_task: Any) -> None:
    def choose(measure: FakeMeasure) -> list[Any]:
        model = tvm_cost_model(make_checkpoint(), update="none")
        return session(measure, model=model, untuned=False).choose().get_all_tuning_records()

    assert len(choose(blind := FakeMeasure())) == 1
    assert blind.count == 0
    measured = FakeMeasure()
    session(measured, trials=4, untuned=False).run()
    (record,) = choose(FakeMeasure())
    assert float(record.run_secs[0]) == pytest.approx(min(map(latency_of_key, measured.keys)), rel=1e-5)


@pytest.mark.parametrize(
    ("settings", "done"),
    [({"early_stop": 1e9}, 4), ({"latency_target": 2.0}, 4), ({"latency_target": 0.5}, 8)],
    ids=["it promises nothing", "it meets its target", "it misses its target"],
)
def test_a_run_may_end_after_the_floor_of_each_task(session: Any, settings: dict[str, Any], done: int) -> None:
    """The fake machine's programs take 1 to 2 ms."""
    assert session(FakeMeasure(), trials=8, untuned=False, **settings).run().done == done


def test_a_latency_target_under_the_roofline_is_named_and_ends_nothing(session: Any, small_task: Any) -> None:
    slow = Roofline(flops=small_task.flops / 0.9e-3, bandwidth=1e12)  # which bounds the task at 0.9 ms
    view = session(FakeMeasure(), trials=8, latency_target=0.5, untuned=False, roofline=slow).run()
    assert view.done == 8
    assert "0.5 ms is out of reach" in view.notes[0]
    assert "0.9 ms at best" in view.notes[0]


def test_a_product_that_exceeds_the_roofline_raises_it(session: Any, small_task: Any) -> None:
    low = Roofline(flops=small_task.flops / 3e-3, bandwidth=1e12)  # as if no program took less than 3 ms
    run = session(FakeMeasure(), trials=8, untuned=False, roofline=low)
    (progress,) = run.run().progress
    assert 1e-3 <= progress.best < 2e-3
    assert progress.bound == pytest.approx(progress.best)
    assert run.roofline.bound(small_task) == progress.bound


def test_a_done_run_measures_nothing_and_more_trials_may_be_asked_for(session: Any) -> None:
    session(FakeMeasure()).run()
    again, more = FakeMeasure(), FakeMeasure()
    session(again).run()
    assert again.count == 0
    view = session(more, trials=16).run()
    assert more.count == 4
    assert view.done == 16


def test_a_space_that_is_used_up_ends_the_run_early(session: Any, one_program: Any) -> None:
    assert session(FakeMeasure(), tasks=[one_program]).run().done == 1


def test_failed_programs_are_kept_as_failures(session: Any, tmp_path: Path) -> None:
    view = session(FakeMeasure(fails=lambda n: n % 3 == 1)).run()
    assert [p.failure for p in view.tuned if p.failure] == ["run: the program divided by zero"] * 4
    assert len(programs_in(tmp_path, "tune")) == 12


@pytest.mark.parametrize(("trials", "failed"), [(40, 16), (4, 4)], ids=["while it runs", "at its end"])
def test_a_machine_where_all_fails_stops_the_run_and_names_the_commonest_error(
    session: Any, trials: int, failed: int
) -> None:
    measure = FakeMeasure(fails=lambda n: n > 0)
    with pytest.raises(MeasurementFailureRateError, match="divided by zero") as caught:
        session(measure, trials=trials, trials_per_iter=8).run()
    assert measure.count == 1 + failed
    assert caught.value.fields["failed"] == failed


def test_ctrl_c_breaks_off_the_batch_in_hand_and_keeps_what_was_measured(session: Any, tmp_path: Path) -> None:
    def press(count: int) -> None:
        if count == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with StopFlag() as stop, pytest.raises(InterruptedRunError, match="measuring"):
        session(FakeMeasure(after=press), stop=stop).run()
    assert len(programs_in(tmp_path, "tune")) == 2, "the other two of the batch were not waited for"
    assert session(FakeMeasure()).run().done == 12


def test_ctrl_c_during_a_search_stops_it(session: Any) -> None:
    stop = StopFlag()
    tuning = session(FakeMeasure(), stop=stop, untuned=False)
    tuning._on_change = lambda view: stop.request() if view.phase == "search" else None
    with pytest.raises(InterruptedRunError, match="searching"):
        tuning.run()


def test_programs_of_a_task_are_measured_while_the_next_one_is_searched(
    session: Any, small_task: Any, one_program: Any
) -> None:
    phases: list[tuple[str, int | None]] = []
    tuning = session(FakeMeasure(), [small_task, one_program], untuned=False, trials=5)
    tuning._on_change = lambda view: phases.append((view.phase, view.current))
    start = time.perf_counter()
    view = tuning.run()
    seconds = time.perf_counter() - start
    measured, searches = phases.index(("measure", None)), [i for i, one in enumerate(phases) if one[0] == "search"]
    assert measured < searches[0], "the round asks for a program when it can be compiled"
    assert ("measure", None) in phases[searches[0] : searches[1]], "the first task's programs do not wait"
    assert view.done == 5
    parts = [view.phases[name] for name in ("search", "model", "measure")]
    assert sum(parts) <= seconds, "a phase inside another is counted once"


def test_programs_that_the_interrupt_itself_broke_are_not_recorded(session: Any, tmp_path: Path) -> None:
    stop = StopFlag()
    measure = FakeMeasure(fails=lambda n: n >= 2, after=lambda n: stop.request() if n == 2 else None)
    with pytest.raises(InterruptedRunError, match="measuring"):
        session(measure, stop=stop).run()
    assert [p.failure for p in programs_in(tmp_path, "tune")] == [None]


def test_any_builder_and_runner_of_metaschedule_serve(session: Any, target: Any) -> None:
    builder, runner = FakeBuilder(failing=True), FakeRunner()
    view = session(RunnerMeasure(builder, runner, target), untuned=False).run()
    assert view.done == 12
    assert [p.failure for p in view.tuned if p.failure] == ["build: the compiler ran out of registers"] * 2
    assert {device for _, device in runner.seen} == {"cpu"}
    assert not any(Path(path).parent.exists() for path, _ in runner.seen), "artifacts are removed"


def test_a_task_whose_untuned_program_is_fastest_is_left_as_it_is(session: Any, small_task: Any) -> None:
    tuning = session(FakeMeasure(), untuned=False)
    tuning.view.untuned[small_task.task_id] = 1e-6
    view = tuning.run()
    assert view.better_untuned() == {small_task.task_id}
    assert view.latency() == pytest.approx(1e-6)


def trial(task: str, latency: float | None, at: float = 0.0) -> MeasuredProgram:
    measurement = Measurement((latency,)) if latency else Measurement((), "run", "crash")
    return MeasuredProgram(task, "", "tune", "", measurement, 0.5, at)


def both(_: Mapping[str, float]) -> dict[str, int]:
    return {"a": 2, "b": 1}


def test_the_curve_counts_untuned_programs_until_something_is_faster() -> None:
    trials = [trial("a", 4.0, 1.0), trial("b", None, 2.0), trial("b", 9.0, 3.0), trial("a", 5.0, 4.0), trial("b", 1.0)]
    points = curve(trials, both, {"a": 10.0, "b": 6.0})
    assert [p["latency"] for p in points] == [14.0, 14.0, 14.0, 14.0, 9.0]
    assert [p["lacking"] for p in points] == [1, 1, 0, 0, 0]
    assert [p["trial"] for p in points] == [1, 2, 3, 4, 5]
    without = curve([trial("a", 4.0), trial("b", 1.0)], both, {})
    assert [(p["trial"], p["latency"]) for p in without] == [(2, 9.0)], "when every task has one"


def test_the_curve_has_at_each_trial_the_fastest_way_known_by_then() -> None:
    """As a run compiles it that ends there: the other way counts once its own program is faster than the direct one."""

    def fastest(latencies: Mapping[str, float]) -> dict[str, int]:
        other = latencies.get("other", inf) < latencies.get("direct", inf)
        return {"direct": not other, "other": other}

    trials = [trial("direct", 5.0), trial("other", 7.0), trial("other", 3.0), trial("direct", 2.0)]
    points = curve(trials, fastest, {"direct": 9.0, "other": 8.0})
    assert [(p["latency"], p["lacking"]) for p in points] == [(5.0, 0), (5.0, 0), (3.0, 0), (2.0, 0)]
    assert [p["lacking"] for p in curve(trials, fastest, {"direct": 4.0, "other": 8.0})] == [0, 0, 0, 0]
    assert curve(trials[1:2], fastest, {"direct": 4.0})[0] == {"trial": 1, "seconds": 0.0, "latency": 4.0, "lacking": 1}


@pytest.fixture
def run(tmp_path: Path, small_task: Any, target: Any) -> Any:
    """Tunes the small task in a folder, sharing with a home; gives the view and what was measured."""

    def tune(folder: str, trials: int = 4, **more: Any) -> Any:
        measure, with_home = FakeMeasure(), {"trials": trials, "untuned": False, "share": True} | more
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


def test_reuse_can_be_switched_off_where_a_run_begins(run: Any) -> None:
    run("first")
    view, _ = run("afresh", reuse=False)
    assert view.reused == 0
    assert not any(program.strategy == "reused" for program in view.programs)
    run("second")
    with pytest.raises(RunStateError, match="began with programs of earlier runs") as caught:
        run("second", reuse=False, trials=8)
    assert "--no-reuse" in str(caught.value.remedy)


def test_a_run_that_goes_on_takes_over_once(run: Any, tmp_path: Path) -> None:
    run("first")
    before, _ = run("second")
    view, more = run("second", trials=8)
    assert view.reused == before.reused == MOST_RECORDS, "its own programs are no earlier run's"
    assert more.count == view.done - before.done > 0
    assert len(programs_in(tmp_path / "second", "reused")) == MOST_RECORDS
    assert len(programs_in(tmp_path / "second", "tune")) == view.done <= 8, "a search may find fewer new programs"


def test_programs_of_another_purpose_are_known_to_tune(
    run: Any, tmp_path: Path, small_candidates: list[Any], target: Any
) -> None:
    with open_store(tmp_path / "adapted", replace(SCOPE, target=str(target))) as store:
        store.put(small_candidates[0], Measurement((1e-3,), None, None, 0.1, 0.1, 1.0))
    view, measure = run("tuned")
    assert view.reused == 1
    assert small_candidates[0].key not in measure.keys
