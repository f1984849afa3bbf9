"""The parts of a tuning run that need no TVM: scheduler, trial log, curve, folder, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
from math import inf, log
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tchub.hub.records.run_folder import claim, locked
from tchub.hub.records.trials import Trial, TrialLog, curve, latency_of
from tchub.hub.records.errors import RunStateError
from tchub.hub.search.expected_gain import Round, expected_gain
from tchub.hub.search.interrupt import StopFlag
from tchub.hub.search.scheduler import MAX_BATCH, TaskProgress, batch_size, gain, next_round, round_size, settled
from tchub.zoo.files import drop_torn_line


def simulate(tasks: list[TaskProgress], trials: int, room: int = 1, latency: float = 1e-3) -> list[int]:
    """Spend trials as a session does; every program takes `latency`."""
    batch, spent = batch_size(trials, tasks), 0
    while spent < trials and (chosen := next_round(tasks, batch, room)):
        for index, asked in chosen:
            count = min(asked, trials - spent)
            if count:
                tasks[index].record([latency] * count)
            spent += count
    return [task.trials for task in tasks]


def next_task(tasks: list[TaskProgress]) -> int:
    """The task that the next round begins with."""
    return next_round(tasks, batch=4, room=1)[0][0]


@given(
    st.lists(st.tuples(st.integers(1, 40), st.booleans(), st.floats(0, 1e9)), min_size=1, max_size=30),
    st.integers(1, 300),
    st.integers(1, 16),
    st.booleans(),
)
def test_no_task_is_left_untuned_while_trials_last(
    tasks: list[tuple[int, bool, float]], trials: int, room: int, cheap: bool
) -> None:
    spent = simulate([TaskProgress(w, fixed, cost, cheap_search=cheap) for w, fixed, cost in tasks], trials, room)
    assert sum(spent) <= trials
    if trials >= 2 * len(tasks):
        assert min(spent) >= 1


def test_the_floor_takes_half_of_128_trials_over_27_tasks() -> None:
    tasks = [TaskProgress(1.0, fixed=i < 9) for i in range(27)]
    assert batch_size(128, tasks) == 3
    assert batch_size(128, tasks, asked=5) == 5
    assert batch_size(10**6, tasks) == MAX_BATCH
    assert batch_size(1, tasks) == 1


def test_a_task_of_one_program_gets_one_trial() -> None:
    assert simulate([TaskProgress(1.0, fixed=True), TaskProgress(1.0)], 40) == [1, 39]


def test_heavy_tasks_come_first_and_get_more() -> None:
    tasks = [TaskProgress(1.0, cost=1.0), TaskProgress(10.0, cost=1.0)]
    assert next_task(tasks) == 1
    spent = simulate(tasks, 200)
    assert spent[1] > 2 * spent[0]


def test_what_improves_is_preferred_to_what_does_not() -> None:
    steady, improving = TaskProgress(1.0), TaskProgress(1.0)
    for latency in (1.0, 1.0, 1.0):
        steady.record([latency])
    for latency in (4.0, 2.0, 1.0):
        improving.record([latency])
    assert gain(improving) > gain(steady)


def test_a_task_that_only_fails_does_not_take_all_trials() -> None:
    broken, sound = TaskProgress(1.0, cost=9.0), TaskProgress(1.0)
    for _ in range(20):
        task = (broken, sound)[next_task([broken, sound])]
        task.record([inf if task is broken else 1e-3] * 2)
    assert broken.rounds == 2


def calibrated(best: float, waiting: float, weight: float = 1.0) -> TaskProgress:
    """A task whose scores are -log(latency), with `waiting` the latency that the scores promise next."""
    latencies = (2 * best, 1.5 * best, best, 1.2 * best)
    task = TaskProgress(weight)
    task.record(latencies)
    task.scored.append(Round(tuple(-log(x) for x in latencies), latencies, (-log(waiting),)))
    return task


def test_the_gain_is_what_the_scores_promise() -> None:
    assert gain(calibrated(1e-3, 0.5e-3)) == pytest.approx(0.5e-3)
    assert gain(calibrated(1e-3, 0.5e-3, weight=3)) == pytest.approx(1.5e-3)
    assert gain(calibrated(1e-3, 2e-3)) == 0
    tasks = [calibrated(1e-3, 0.9e-3), calibrated(1e-3, 0.4e-3), calibrated(5e-3, 6e-3)]
    assert next_task(tasks) == 1


@given(st.floats(-3, 3), st.floats(0.1, 10))
def test_the_level_and_scale_of_scores_do_not_matter(level: float, scale: float) -> None:
    plain = calibrated(1e-3, 0.7e-3).scored[0]
    moved = Round(
        tuple(level + scale * s for s in plain.scores), plain.latencies, tuple(level + scale * s for s in plain.waiting)
    )
    found = expected_gain([moved], 1e-3)
    assert found == pytest.approx(expected_gain([plain], 1e-3), rel=1e-4)


def test_scores_that_say_nothing_promise_by_chance_alone() -> None:
    noise = Round((1.0, 2.0, 3.0, 4.0), (1e-3, 2e-3, 1e-3, 2e-3), (5.0,))
    promised = expected_gain([noise], 1e-3)
    assert promised is not None
    assert 0 < promised < 0.5e-3


def test_without_calibration_the_gradient_decides() -> None:
    assert expected_gain([], 1e-3) is None
    assert expected_gain([Round((1.0,), (1e-3,), (1.0,))] * 5, 1e-3) is None, "one program a round has no order"
    assert expected_gain([Round((1.0, 2.0, 3.0, 4.0), (1e-3, 2e-3, inf, 3e-3), (1.0,))], 1e-3) is None
    assert expected_gain([Round((1.0, 2.0, 3.0, 4.0), (1.0, 2.0, 3.0, 4.0), ())], 1e-3) is None


def test_a_network_is_settled_when_no_task_promises_a_share_of_it() -> None:
    dull = [calibrated(1e-3, 0.9999e-3), calibrated(1e-3, 2e-3)]
    assert settled(dull, 0.001)
    assert not settled(dull, 0.0), "unless asked, all trials are spent"
    assert not settled([*dull, TaskProgress(1.0)], 0.001), "a task that was not measured promises everything"
    failing = TaskProgress(1.0)
    failing.record([inf])
    assert not settled([*dull, failing], 0.001), "one round may have had bad luck"
    failing.record([inf])
    assert settled([*dull, failing], 0.001), "a task without a valid program does not spend all trials of the others"
    assert not settled([failing], 0.001)


@given(st.lists(st.tuples(st.integers(1, 40), st.floats(1, 1e9)), min_size=3, max_size=30))
def test_fewer_trials_than_tasks_go_to_the_heaviest(facts: list[tuple[int, float]]) -> None:
    tasks = [TaskProgress(weight, cost=cost) for weight, cost in facts]
    spent = simulate(tasks, len(tasks) // 2)
    assert max(spent) <= 1
    measured = [w * c for (w, c), n in zip(facts, spent, strict=True) if n]
    left = [w * c for (w, c), n in zip(facts, spent, strict=True) if not n]
    assert min(measured) >= max(left)


def test_with_nothing_open_there_is_no_next_task() -> None:
    assert next_round([TaskProgress(1.0, exhausted=True)], 4, 8) == []


def test_where_searching_is_cheap_every_task_gets_one_program_before_any_gets_two() -> None:
    tasks = [TaskProgress(1.0, cost=float(i), cheap_search=True) for i in range(5)]
    first = next_round(tasks, batch=8, room=8)
    assert first == [(i, 1) for i in (4, 3, 2, 1, 0)]
    for index, count in first:
        tasks[index].record([1e-3] * count)
    assert [count for _, count in next_round(tasks, batch=8, room=8)] == [2, 2, 2, 2]
    assert round_size(TaskProgress(1.0), 8) == 8, "MetaSchedule's search is too slow for rounds of one"


@given(st.integers(1, 20), st.integers(1, 64), st.integers(1, 64))
def test_a_round_ends_with_the_task_that_fills_it(count: int, batch: int, room: int) -> None:
    chosen = next_round([TaskProgress(1.0) for _ in range(count)], batch, room)
    assert len({index for index, _ in chosen}) == len(chosen) == min(count, -(-room // batch))


def trial(task: str, latency: float | None, at: float = 0.0) -> Trial:
    return Trial(task, at, (latency,) if latency else (), latency, 0.5, None if latency else "run: crash")


def test_the_log_gives_back_what_was_written(tmp_path: Path) -> None:
    log = TrialLog(tmp_path / "trials.jsonl")
    log.append([trial("a", 1e-3, 2.0), trial("b", None, 3.5), Trial("a", 0.0, (2e-3,), 2e-3, kind="untuned")])
    again = TrialLog(log.path)
    assert again.trials == log.trials
    assert [t.task for t in again.tuned] == ["a", "b"]
    assert again.seconds == 3.5


def test_a_line_that_a_kill_tore_is_dropped(tmp_path: Path) -> None:
    log = TrialLog(tmp_path / "trials.jsonl")
    log.append([trial("a", 1e-3)])
    whole = log.path.read_text()
    log.path.write_text(whole + whole[:20])
    assert TrialLog(log.path).trials == log.trials
    assert log.path.read_text() == whole


def test_a_last_line_without_its_newline_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "records.json"
    path.write_text('[1]\n[2, "x"]')
    assert drop_torn_line(path)
    assert path.read_text() == '[1]\n[2, "x"]\n'
    assert not drop_torn_line(path)


def test_a_damaged_log_says_where(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    path.write_text('{"task": 1}\n')
    with pytest.raises(RunStateError, match="line 1"):
        TrialLog(path)


def test_the_curve_counts_untuned_programs_until_something_is_faster() -> None:
    trials = [trial("a", 4.0, 1.0), trial("b", None, 2.0), trial("b", 9.0, 3.0), trial("a", 5.0, 4.0), trial("b", 1.0)]
    points = curve(trials, {"a": 2, "b": 1}, {"a": 10.0, "b": 6.0})
    assert [p.latency for p in points] == [14.0, 14.0, 14.0, 14.0, 9.0]
    assert [p.measured for p in points] == [1, 1, 2, 2, 2]
    assert [p.trial for p in points] == [1, 2, 3, 4, 5]


def test_without_untuned_programs_the_curve_begins_when_every_task_has_one() -> None:
    points = curve([trial("a", 4.0), trial("b", 1.0)], {"a": 2, "b": 1}, {})
    assert [(p.trial, p.latency) for p in points] == [(2, 9.0)]


@given(st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=9))
def test_latency_is_the_median_of_the_repeats(values: list[float]) -> None:
    from statistics import median

    assert latency_of(values) == pytest.approx(median(values))


def test_no_latency_from_no_time() -> None:
    assert latency_of([]) is None
    assert latency_of([0.0]) is None
    assert latency_of([1.0, inf]) is None


FACTS = {"network": "n", "target": "llvm", "model": "stock", "tasks": ["a"]}


def test_a_folder_belongs_to_one_run(tmp_path: Path) -> None:
    assert claim(tmp_path, FACTS) is False
    assert claim(tmp_path, FACTS | {"settings": {"trials": 9}}) is True
    with pytest.raises(RunStateError, match="another model: stock"):
        claim(tmp_path, FACTS | {"model": "tcl-epyc@1.0.0"})
    with pytest.raises(RunStateError, match="holds an earlier run"):
        claim(tmp_path, FACTS, resume=False)


def test_a_folder_of_a_newer_release_or_with_a_damaged_file_is_refused(tmp_path: Path) -> None:
    claim(tmp_path, FACTS)
    path = tmp_path / "session.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    with pytest.raises(RunStateError, match="newer release"):
        claim(tmp_path, FACTS)
    path.write_text("{")
    with pytest.raises(RunStateError, match="damaged"):
        claim(tmp_path, FACTS)


def test_two_processes_do_not_tune_into_one_folder(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(RunStateError, match="another process"), locked(tmp_path):
        pass


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunStateError, match="cannot be written"), locked(tmp_path / "file" / "out"):
        pass


def test_the_first_ctrl_c_asks_and_the_second_interrupts() -> None:
    before = signal.getsignal(signal.SIGINT)
    with StopFlag() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_ctrl_c_that_the_process_was_started_to_ignore_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as by `nohup tchub tune ... &`
    try:
        with StopFlag() as stop:
            os.kill(os.getpid(), signal.SIGINT)
        assert not stop.requested
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
