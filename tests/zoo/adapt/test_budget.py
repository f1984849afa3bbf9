"""A budget is a share, a count, a time, or stops itself by its learning curve; and never nothing."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tchub.zoo.adapt.budget import CHOICE, LearningPoint, decide, expected_slowdown, parse_budget, slowdown
from tchub.zoo.adapt.errors import AdaptError


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("10%", "share", 0.1),
        ("200", "programs", 200),
        (64, "programs", 64),
        ("15m", "seconds", 900),
        ("1h", "seconds", 3600),
        (" 1.5H ", "seconds", 5400),
        ("Auto", "auto", 0.5),
    ],
)
def test_the_forms(text, kind, value):
    budget = parse_budget(text)
    assert budget.kind == kind
    assert budget.value == pytest.approx(value)
    assert parse_budget(budget) is budget


@pytest.mark.parametrize(
    "text", ["0", "0%", "-5", "-1%", "0s", "100.1%", "2.5", "ten", "", "%", "5d", "1e3", "nan", True]
)
def test_nonsense_is_refused_with_a_remedy(text):
    with pytest.raises(AdaptError) as caught:
        parse_budget(text)
    assert caught.value.remedy


def test_programs_of_a_pool():
    assert parse_budget("10%").programs(1234) == 123
    assert parse_budget("1%").programs(10) == 1, "never nothing"
    assert parse_budget("200").programs(50) == 50, "never more than there is"
    assert parse_budget("15m").programs(50) is None
    assert parse_budget("15m").seconds == 900
    assert parse_budget("10%").seconds == math.inf
    assert parse_budget("auto").programs(200) == 100, "at most half of the pool"
    assert parse_budget("auto").seconds == math.inf


def curve(labels: list[int], law) -> list[LearningPoint]:
    return [LearningPoint(n, float(n), law(n), 0.7) for n in labels]


def slowdown_by_counting(scores, latency, choice: int) -> float:
    """Every choice of programs, one by one; of equal scores the mean."""
    taken, best = [], []
    for picks in itertools.combinations(range(len(scores)), choice):
        top = max(scores[i] for i in picks)
        taken.append(np.mean([latency[i] for i in picks if scores[i] == top]))
        best.append(min(latency[i] for i in picks))
    return float(np.sum(taken) / np.sum(best)) - 1


@given(st.lists(st.tuples(st.integers(0, 9), st.floats(0.1, 10)), min_size=1, max_size=8))
def test_the_closed_form_is_the_mean_over_every_choice(programs):
    scores, latency = (np.array(column, dtype=float) for column in zip(*programs, strict=True))
    wanted = slowdown_by_counting(scores, latency, min(CHOICE, len(scores)))
    found = slowdown(scores, latency, np.zeros(len(scores), int), np.ones(1))
    assert found == pytest.approx(wanted, abs=1e-9)


def test_the_best_order_is_not_slower_and_a_weight_counts_a_task_so_often():
    latency, group = np.array([1.0, 2, 3, 4, 10, 20, 30, 40]), np.repeat([0, 1], 4)
    assert slowdown(-latency, latency, group, np.ones(2)) == pytest.approx(0)
    backwards = slowdown(latency, latency, group, np.ones(2))
    assert backwards == pytest.approx(3), "the slowest of four is four times the fastest"
    half = np.where(group == 0, latency, -latency)
    assert slowdown(half, latency, group, np.array([10.0, 1.0])) == pytest.approx((40 + 10) / (10 + 10) - 1)


@pytest.mark.parametrize("power", [0.3, 0.5, 1.0])
def test_a_power_law_is_found_again(power):
    points = curve([16, 32, 48, 64, 96], lambda n: 0.05 + 2 * n**-power)
    assert expected_slowdown(points, 200) == pytest.approx(0.05 + 2 * 200**-power, rel=1e-6)


@given(st.lists(st.floats(0, 5), min_size=2, max_size=8), st.integers(8, 200))
def test_the_curve_never_rises_and_never_falls_below_nothing(values, step):
    points = [LearningPoint(step * (i + 1), 1.0, value, 0.5) for i, value in enumerate(values)]
    now, later, end = (expected_slowdown(points, n) for n in (points[-1].labels, points[-1].labels + step, 10**9))
    assert now >= later >= end >= 0


def test_a_round_is_made_while_it_is_worth_its_time():
    points = curve([16, 32, 48], lambda n: 2 * n**-0.5)
    gain = 2 * 48**-0.5 - 2 * 64**-0.5
    cheap = decide(points, 16, cost=100 * gain * 60 - 1, worth=60, least=3)
    dear = decide(points, 16, cost=100 * gain * 60 + 1, worth=60, least=3)
    assert (cheap.stop, dear.stop) == (False, True)
    assert cheap.gain == pytest.approx(gain, rel=1e-6)
    assert "of the latency" in dear.reason
    assert not decide(points, 16, cost=dear.cost, worth=120, least=3).stop, "the same time is worth more to this user"


def test_a_flat_curve_stops_and_a_short_one_does_not():
    flat = curve([16, 32, 48], lambda n: 0.1)
    assert decide(flat, 16, cost=1e-6, worth=1e6, least=3).stop
    rising = curve([16, 32, 48], lambda n: n / 100)
    assert decide(rising, 16, cost=1e-6, worth=1e6, least=3).gain == 0
    early = decide(flat[:2], 16, cost=math.inf, worth=60, least=3)
    assert (early.stop, early.gain) == (False, None)


def test_rounds_without_a_label_tell_nothing_of_the_curve():
    """A first batch may fail as a whole: its point is at no label, where a power law has no value."""
    points = [LearningPoint(0, 16.0, 0.5, 0.5), *curve([16, 32], lambda n: 2 * n**-0.5)]
    early = decide(points[:2], 16, cost=1.0, worth=60, least=2)
    assert (early.stop, early.gain) == (False, None)
    found = decide(points, 16, cost=1.0, worth=60, least=2)
    assert found.gain == pytest.approx(2 * 32**-0.5 - 2 * 48**-0.5, rel=1e-6)
    assert not found.stop
