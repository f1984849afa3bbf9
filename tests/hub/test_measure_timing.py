"""Repeats: slow programs stop early, steady ones soon, good ones when their median is known well; times injected."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tchub.hub.device.timing import TimingConfig, is_enough, median_error, take_repeats

CONFIG = TimingConfig(min_repeats=3, max_repeats=10, spread=0.01, slow_factor=5.0, max_seconds=60.0)


def steady(cost: float) -> tuple[Callable[[], float], Callable[[int], float], list[int]]:
    """A program that always takes `cost` seconds, and how often it was asked to run in a row."""
    asked: list[int] = []

    def run_many(number: int) -> float:
        asked.append(number)
        return cost

    return lambda: cost, run_many, asked


@pytest.mark.parametrize(
    ("cost", "best", "repeats"),
    [
        (1e-3, None, 3),  # nothing to compare with, steady: the fewest repeats
        (1e-3, 0.9e-3, 3),
        (1e-3, 0.1e-3, 1),  # short and clearly slower than the best: one repeat
        (5e-5, 1e-5 / 1.1, 1),
        (5e-5, 1e-5 * 1.1, 3),  # not clearly slower
    ],
)
def test_a_steady_program_gets_as_few_repeats_as_it_needs(cost: float, best: float | None, repeats: int) -> None:
    once, many, asked = steady(cost)
    assert take_repeats(once, many, CONFIG, best) == [cost] * repeats
    assert all(number * cost <= CONFIG.min_repeat_seconds < (number + 1) * cost for number in asked)


def test_a_long_and_slow_program_is_not_repeated_at_all() -> None:
    once, many, asked = steady(0.2)
    assert take_repeats(once, many, CONFIG, best=0.01) == [0.2]
    assert asked == []


def test_one_preempted_run_does_not_make_a_program_slow() -> None:
    firsts = iter([0.05, 0.001])
    _, many, asked = steady(0.001)
    assert len(take_repeats(lambda: next(firsts), many, CONFIG, best=0.001)) == 3
    assert asked


def test_a_good_program_is_repeated_longer_than_a_middling_one() -> None:
    noise = [1.0, 1.012, 0.99, 1.01, 0.995, 1.005, 1.0, 1.008, 0.992, 1.0]

    def repeats(best: float) -> int:
        costs = iter([1e-3 * x for x in noise])
        return len(take_repeats(lambda: 1e-3, lambda _: next(costs), CONFIG, best))

    assert repeats(best=1e-3) > repeats(best=0.5e-3)


def test_with_the_cache_flushed_each_repeat_is_one_run() -> None:
    once, many, asked = steady(1e-5)
    take_repeats(once, many, TimingConfig(flush=True), None)
    assert set(asked) == {1}


def test_time_bounds_the_repeats() -> None:
    assert is_enough([1.0, 2.0, 3.0], None, seconds=61.0, config=CONFIG)
    assert not is_enough([1.0, 2.0, 3.0], None, seconds=59.0, config=CONFIG)


@given(st.lists(st.floats(1e-6, 1.0), min_size=10, max_size=40), st.one_of(st.none(), st.floats(1e-6, 1.0)))
def test_repeats_stay_within_their_bounds(costs: list[float], best: float | None) -> None:
    feed: Iterator[float] = iter(costs)
    taken = take_repeats(lambda: costs[0], lambda _: next(feed), CONFIG, best)
    assert 1 <= len(taken) <= CONFIG.max_repeats


@given(st.lists(st.floats(1e-3, 1.0), min_size=3, max_size=10), st.floats(0.1, 10.0))
def test_the_error_of_the_median_has_no_unit(costs: list[float], factor: float) -> None:
    assert median_error([factor * x for x in costs]) == pytest.approx(median_error(costs), abs=1e-9)
