"""The clock: how often a program is timed, and what disturbs a measurement; times injected."""

import os
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tchub.hub.device.timing import (
    DriftWatch,
    TimingConfig,
    make_reference_kernel,
    measure_watched,
    take_repeats,
)

QUIET = 50e-6


def learned() -> DriftWatch:
    """A watch that knows the usual time."""
    watch = DriftWatch()
    while watch.usual is None:
        assert not watch.is_disturbed(QUIET)
    return watch


def fed(times: Iterable[float]) -> Callable[[], float]:
    feed = iter(times)
    return lambda: next(feed)


def test_a_short_disturbance_does_not_become_usual_but_a_lasting_change_does() -> None:
    watch = learned()
    assert [watch.is_disturbed(times * QUIET) for times in (1.1, 1.2, 1.5)] == [False, True, True]
    for _ in range(64):
        watch.is_disturbed(1.5 * QUIET)
    assert not watch.is_disturbed(1.5 * QUIET)


@pytest.mark.parametrize(
    ("references", "result"),
    [([QUIET], (9.0, 0, False)), ([2 * QUIET, 2 * QUIET, QUIET], (7.0, 2, False)), ([2 * QUIET] * 3, (7.0, 2, True))],
)
def test_a_disturbed_program_is_measured_again_until_the_machine_is_quiet(
    references: list[float], result: object
) -> None:
    assert measure_watched(fed([9.0, 8.0, 7.0]), fed(references), learned()) == result


def test_beside_a_program_of_several_threads_it_runs_on_all_their_cores_in_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pinned: list[tuple[int, ...]] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cpus: pinned.append(tuple(cpus)))
    six = tuple(range(6))
    kernel = make_reference_kernel(six)
    assert 0 < kernel() < 1
    assert 0 < kernel() < 1
    one_by_one = [(cpu,) for cpu in (0, 1, 2, 3)], [(cpu,) for cpu in (4, 5, 0, 1)]
    assert pinned == [*one_by_one[0], six, *one_by_one[1], six], "and this thread may use all of them again"


CONFIG = TimingConfig(min_repeats=3, max_repeats=10, spread=0.01, slow_factor=5.0, max_seconds=60.0)


def steady(cost: float) -> tuple[Callable[[int, int], list[float]], list[tuple[int, int]]]:
    """A program that always takes `cost` seconds, and what was asked of it: runs in a row, repeats."""
    asked: list[tuple[int, int]] = []

    def run(number: int, repeat: int) -> list[float]:
        asked.append((number, repeat))
        return [cost] * repeat

    return run, asked


def noisy(costs: Iterable[float]) -> Callable[[int, int], list[float]]:
    """A program that takes these seconds, one after the other."""
    feed = iter(costs)
    return lambda _, repeat: [next(feed) for _ in range(repeat)]


@pytest.mark.parametrize(
    ("cost", "best", "repeats"),
    [
        (1e-3, None, 3),  # nothing to compare with, steady: the fewest repeats
        (1e-3, 0.9e-3, 3),
        (1e-3, 0.1e-3, 1),  # short and clearly slower than the best: one repeat
        (5e-5, 1e-5 / 1.1, 1),
        (5e-5, 1e-5 * 1.1, 3),  # not clearly slower
        (0.2, 0.01, 1),  # long and slow
    ],
)
def test_a_steady_program_gets_as_few_repeats_as_it_needs(cost: float, best: float | None, repeats: int) -> None:
    run, asked = steady(cost)
    assert take_repeats(run, CONFIG, best) == [cost] * repeats
    assert all(number * cost <= CONFIG.min_repeat_seconds < (number + 1) * cost for number, _ in asked[1:])


def test_one_preempted_run_does_not_make_a_program_slow() -> None:
    run = noisy([0.05, *[0.001] * 9])
    assert take_repeats(run, CONFIG, best=0.001) == [0.001] * 3


def test_a_good_program_is_repeated_longer_than_a_middling_one() -> None:
    noise = [1.0, 1.0, 1.0, 1.012, 0.99, 1.01, 0.995, 1.005, 1.0, 1.008, 0.992, 1.0]

    def repeats(best: float) -> int:
        return len(take_repeats(noisy(1e-3 * x for x in noise), CONFIG, best))

    assert repeats(best=1e-3) > repeats(best=0.5e-3)


@given(st.lists(st.floats(1e-6, 1.0), min_size=12, max_size=40), st.none() | st.floats(1e-6, 1.0), st.integers(1, 3))
def test_repeats_stay_within_their_bounds(costs: list[float], best: float | None, least: int) -> None:
    config = replace(CONFIG, min_repeats=least)
    assert 1 <= len(take_repeats(noisy(costs), config, best)) <= CONFIG.max_repeats
