"""The order of tasks: a floor for each, then the largest expected gain."""

from math import inf, log

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tchub.hub.search.scheduler import (
    ScoredRound,
    TaskProgress,
    batch_size,
    gain,
    next_round,
    priority,
    round_size,
    settled,
)


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


def test_a_task_of_one_program_gets_one_trial_and_a_heavy_one_comes_first_and_gets_more() -> None:
    assert simulate([TaskProgress(1.0, fixed=True), TaskProgress(1.0)], 40) == [1, 39]
    tasks = [TaskProgress(1.0, cost=1.0), TaskProgress(10.0, cost=1.0)]
    assert next_task(tasks) == 1
    light, heavy = simulate(tasks, 200)
    assert heavy > 2 * light


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
    task.scored.append(ScoredRound(tuple(-log(x) for x in latencies), latencies, (-log(waiting),)))
    return task


def test_the_gain_is_what_the_scores_promise() -> None:
    assert gain(calibrated(1e-3, 0.5e-3)) == pytest.approx(0.5e-3)
    assert gain(calibrated(1e-3, 0.5e-3, weight=3)) == pytest.approx(1.5e-3)
    assert gain(calibrated(1e-3, 2e-3)) == 0


def test_what_is_near_its_roofline_waits() -> None:
    far, near = TaskProgress(1.0, bound=0.2e-3), TaskProgress(3.0, bound=0.95e-3)
    for task in (far, near):
        task.record([1e-3] * 4)
    assert next_task([near, far]) == 1
    assert priority(near) > 0, "a task at its roofline keeps a little: the roofline may be measured too low"


def test_a_model_that_is_wrong_about_a_task_does_not_starve_it() -> None:
    """Of equal tasks one is promised nothing by scores that were wrong on it, and gets its turns all the same."""
    latencies = (1e-3, 2e-3, 1e-3, 2e-3)
    wrong = ScoredRound((1.0, 2.0, 3.0, 4.0), latencies, (-9.0,))
    tasks = [TaskProgress(1.0, bound=1e-4), TaskProgress(1.0, bound=1e-4)]
    for task in tasks:
        task.record(latencies)
    for _ in range(20):
        chosen = tasks[next_task(tasks)]
        chosen.record([1e-3] * 4)
        tasks[0].scored.append(wrong)
    assert tasks[0].trials >= 0.4 * tasks[1].trials


def test_a_promise_that_is_not_kept_counts_less() -> None:
    """Scores may order a task's programs rightly and promise more each round, while its best one stays the best."""
    near, far = calibrated(1e-3, 0.8e-3), TaskProgress(1.0, bound=0.7e-3, trials=400)
    near.bound = 0.95e-3
    far.record([1e-3] * 4)
    turns = [0, 0]
    for _ in range(40):
        chosen = next_task([near, far])
        turns[chosen] += 1
        (near, far)[chosen].record([1e-3] * 4)
    assert turns[1] > turns[0] > 5


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


def test_trials_are_not_spent_on_next_to_nothing_once_all_else_is_measured() -> None:
    large, small = calibrated(1e-3, 0.5e-3), calibrated(0.9e-6, 0.5e-6)
    assert not settled([large, small], 0.0)
    large.exhausted = True
    assert settled([large, small], 0.0)
    assert not settled([large, small, TaskProgress(1.0)], 0.0), "a task that was not measured may be anything"
    assert not settled([large, calibrated(2e-6, 1e-6)], 0.0)


@given(st.lists(st.tuples(st.integers(1, 40), st.floats(1, 1e9)), min_size=3, max_size=30))
def test_fewer_trials_than_tasks_go_to_the_heaviest(facts: list[tuple[int, float]]) -> None:
    tasks = [TaskProgress(weight, cost=cost) for weight, cost in facts]
    spent = simulate(tasks, len(tasks) // 2)
    assert max(spent) <= 1
    measured = [w * c for (w, c), n in zip(facts, spent, strict=True) if n]
    left = [w * c for (w, c), n in zip(facts, spent, strict=True) if not n]
    assert min(measured) >= max(left)


def test_where_searching_is_cheap_every_task_gets_one_program_before_any_gets_two() -> None:
    tasks = [TaskProgress(1.0, cost=float(i), cheap_search=True) for i in range(5)]
    first = next_round(tasks, batch=8, room=8)
    assert first == [(i, 1) for i in (4, 3, 2, 1, 0)]
    for index, count in first:
        tasks[index].record([1e-3] * count)
    assert [count for _, count in next_round(tasks, batch=8, room=8)] == [2, 2, 2, 2]
    assert round_size(TaskProgress(1.0), 8) == 8, "MetaSchedule's search is too slow for rounds of one"
