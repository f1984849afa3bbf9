"""Samplers: RDU equals the paper's quadratic definitions, keeps its budgets, and is fast."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_kit import make_pool, seen_by
from tchub.zoo.adapt.errors import UnknownSamplerError
from tchub.zoo.adapt.sampling import (
    SAMPLERS,
    Pool,
    RandomSampler,
    RDUSampler,
    StratifiedSampler,
    create_sampler,
    normalise,
    op_budgets,
)


def naive_distance(f, labeled):
    """Equation 1, all pairs."""
    return np.array([min(abs(x - y) for y in labeled) for x in f])


def naive_variance(f, labeled):
    """Equations 2 and 3, one program at a time."""
    return np.array([np.var([x, *labeled]) for x in f])


@settings(max_examples=50)
@given(st.integers(0, 10_000), st.integers(1, 20), st.integers(1, 4))
def test_every_pick_of_rdu_is_the_best_by_the_quadratic_definition(seed, k, known):
    """Replays algorithm 1 by definition: each reason holds its equations, and no open program had more."""
    rng = np.random.default_rng(seed)
    pool = make_pool(["conv2d", "conv2d", "matmul", "softmax"], 8)
    scores = rng.normal(size=len(pool))
    labeled = list(rng.choice(len(pool), known, replace=False))
    left = Counter(op_budgets(pool, labeled, k))
    selection = RDUSampler().select(pool, labeled, k, seen_by(scores), rng)
    f = normalise(scores)
    for reason in selection.reasons:
        open_ = [i for i in range(len(pool)) if i not in labeled and left[pool.op(i)] > 0]
        d, u = naive_distance(f[open_], f[labeled]), naive_variance(f[open_], f[labeled])
        at = open_.index(reason.index)
        assert reason.diversity == pytest.approx(d[at], abs=1e-9)
        assert reason.uncertainty == pytest.approx(u[at], abs=1e-9)
        assert reason.total == pytest.approx(f[reason.index] * d[at] + u[at], abs=1e-9)
        assert reason.total >= (f[open_] * d + u).max() - 1e-9
        labeled.append(reason.index)
        left[reason.op] -= 1
    assert sum(left.values()) == 0, "no unit of the budget is lost"


@given(
    st.lists(st.sampled_from(["conv2d", "matmul", "softmax", "pool", "norm"]), min_size=1, max_size=12),
    st.integers(1, 6),
    st.integers(1, 80),
    st.integers(0, 99),
)
def test_the_whole_budget_is_spent_and_nothing_is_picked_twice(ops, per_task, k, seed):
    rng = np.random.default_rng(seed)
    pool = make_pool(ops, per_task)
    labeled: list[int] = []
    for number, sampler in enumerate([RDUSampler(), RDUSampler(), RandomSampler()], start=1):
        if len(labeled) == len(pool):
            break
        selection = sampler.select(pool, labeled, k, seen_by(rng.normal(size=len(pool))), rng, round=number)
        assert len(selection.indices) == min(k, len(pool) - len(labeled))
        assert not set(selection.indices.tolist()) & set(labeled)
        assert len(set(selection.indices.tolist())) == len(selection.indices)
        assert [r.index for r in selection.reasons] == selection.indices.tolist()
        assert all(r.round == number and r.op == pool.op(r.index) for r in selection.reasons)
        labeled.extend(selection.indices.tolist())


def test_operator_types_share_the_budget_as_they_share_the_tasks():
    pool = make_pool(["conv2d"] * 6 + ["matmul"] * 3 + ["pool"], 50)
    assert op_budgets(pool, [], 100) == {"conv2d": 60, "matmul": 30, "pool": 10}
    view = seen_by(np.random.default_rng(0).normal(size=500))
    selection = RDUSampler().select(pool, [0], 99, view, np.random.default_rng(1))
    assert Counter(r.op for r in selection.reasons) == {"conv2d": 59, "matmul": 30, "pool": 10}


def test_programs_of_a_task_do_not_count_only_tasks_do():
    pool = Pool(np.array([0] * 90 + [1] * 10), ("conv2d", "matmul"))
    assert op_budgets(pool, [], 10) == {"conv2d": 5, "matmul": 5}


def test_a_budget_smaller_than_the_operator_types_reaches_them_all_over_the_rounds():
    ops = ["conv2d", "matmul", "softmax", "pool", "norm", "reduce"]
    pool, rng = make_pool(ops, 10), np.random.default_rng(0)
    labeled: list[int] = []
    for number in range(1, 4):
        view = seen_by(rng.normal(size=len(pool)))
        picked = RDUSampler().select(pool, labeled, 2, None if number == 1 else view, rng, round=number)
        assert len(picked.indices) == 2
        labeled.extend(picked.indices.tolist())
    first = {pool.op(i) for i in labeled[:2]}
    assert {pool.op(i) for i in labeled[2:]} & first == set()
    assert len({pool.op(i) for i in labeled}) >= 5


def test_what_a_small_type_cannot_fill_goes_to_the_others():
    pool = Pool(np.array([0] * 3 + [1] * 40), ("pool", "conv2d"))
    assert op_budgets(pool, [], 20) == {"pool": 3, "conv2d": 17}


def test_the_first_round_is_random_and_seeded():
    pool = make_pool(["conv2d", "matmul"], 100)
    picks = [RDUSampler().select(pool, [], 20, None, np.random.default_rng(s)).indices.tolist() for s in (7, 7, 8)]
    assert picks[0] == picks[1] != picks[2]
    reason = RDUSampler().select(pool, [], 1, None, np.random.default_rng(0)).reasons[0]
    assert reason.as_dict()["diversity"] is None


def test_equal_scores_are_broken_at_random_not_by_place():
    pool = make_pool(["conv2d"] * 10, 50)
    picked = RDUSampler().select(pool, [0], 50, seen_by(np.zeros(500)), np.random.default_rng(0))
    assert len({int(pool.task[i]) for i in picked.indices}) > 5


def test_higher_predictions_win_at_equal_distance():
    pool = make_pool(["conv2d"], 5)
    view = seen_by([0.0, 0.25, 0.5, 0.75, 1.0])
    assert RDUSampler().select(pool, [2], 1, view, np.random.default_rng(0)).indices.tolist() == [4]


def test_a_stratified_choice_levels_the_tasks():
    pool = Pool(np.repeat(np.arange(4), [20, 20, 20, 2]), ("conv2d",) * 4)
    labeled = [0, 1, 2, 20]
    picked = StratifiedSampler().select(pool, labeled, 10, None, np.random.default_rng(0), round=2)
    counts = np.bincount(pool.task[[*labeled, *picked.indices]], minlength=4)
    assert counts.tolist() == [4, 4, 4, 2]
    assert {r.round for r in picked.reasons} == {2}
    again = StratifiedSampler().select(pool, labeled, 10, None, np.random.default_rng(0))
    assert picked.indices.tolist() == again.indices.tolist()


def test_samplers_by_name():
    assert set(SAMPLERS) == {"random", "stratified", "alt", "balto", "fasor", "rdu", "rdu+", "strata"}
    own = RDUSampler()
    assert create_sampler(own) is own
    with pytest.raises(UnknownSamplerError, match="psychic") as caught:
        create_sampler("psychic")
    assert "rdu" in caught.value.remedy
