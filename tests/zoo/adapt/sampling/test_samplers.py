"""Properties of every sampler, whatever the pool, the labels and the model."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_kit import make_pool, predict_pool
from tchub.zoo.adapt.errors import AdaptError
from tchub.zoo.adapt.sampling import SAMPLERS, Pool, RDUSampler, create_sampler
from tchub.zoo.adapt.sampling.pool import op_budgets, task_budgets

every_sampler = pytest.mark.parametrize("name", SAMPLERS)
pools = st.builds(
    make_pool,
    st.lists(st.sampled_from(["conv2d", "matmul", "softmax", "pool"]), min_size=1, max_size=8),
    st.integers(1, 6),
)


@every_sampler
@settings(max_examples=25, deadline=None)
@given(pools, st.integers(1, 60), st.integers(0, 6), st.integers(0, 99))
def test_picks_are_distinct_unlabeled_and_exactly_as_many_as_asked(name, pool, k, known, seed):
    rng = np.random.default_rng(seed)
    labeled = rng.choice(len(pool), min(known, len(pool) - 1), replace=False)
    picked = create_sampler(name).select(pool, labeled, k, predict_pool(pool, labeled, seed), rng, round=3)
    indices = picked.indices.tolist()
    assert len(indices) == min(k, len(pool) - len(labeled))
    assert len(set(indices)) == len(indices)
    assert not set(indices) & set(labeled.tolist())
    assert [r.index for r in picked.reasons] == indices
    assert {(r.round, r.op) for r in picked.reasons} <= {(3, op) for op in pool.ops}


@every_sampler
def test_without_a_model_every_sampler_chooses(name):
    pool = make_pool(["conv2d", "matmul"], 30)
    picked = create_sampler(name).select(pool, [], 20, None, np.random.default_rng(0))
    assert len(set(picked.indices.tolist())) == 20
    assert picked.reasons[0].uncertainty is None


@every_sampler
def test_nothing_to_pick_is_an_error(name):
    pool = make_pool(["conv2d"], 3)
    for empty, labeled, k in ((Pool(np.empty(0, np.int64), ()), [], 2), (pool, [0, 1, 2], 2), (pool, [], 0)):
        with pytest.raises(AdaptError, match="nothing to pick"):
            create_sampler(name).select(empty, labeled, k, None, np.random.default_rng(0))


@pytest.mark.parametrize("name", [name for name in SAMPLERS if name not in ("random", "stratified")])
@pytest.mark.parametrize("wrong", [np.nan, -np.inf])
def test_predictions_that_are_not_numbers_are_refused(name, wrong):
    pool = make_pool(["conv2d", "matmul"], 3)
    predictions = predict_pool(pool, [0], scores=[0.0, wrong, 1.0, 2.0, 3.0, 4.0])
    with pytest.raises(AdaptError, match="not finite"):
        create_sampler(name).select(pool, [0], 2, predictions, np.random.default_rng(0))


@every_sampler
@pytest.mark.parametrize("latency", [np.full(4, np.nan), np.full(4, 1e-3), np.array([np.nan, 1e-3, np.inf, 2e-3])])
def test_labels_that_failed_or_are_all_alike_do_not_stop_a_sampler(name, latency):
    pool, labeled = make_pool(["conv2d", "matmul"], 10), [0, 1, 10, 11]
    predictions = predict_pool(pool, labeled, latency=latency)
    assert len(create_sampler(name).select(pool, labeled, 5, predictions, np.random.default_rng(0)).indices) == 5


@every_sampler
def test_constant_scores_and_embeddings_still_give_a_whole_batch(name):
    pool = make_pool(["conv2d"] * 4, 10)
    predictions = predict_pool(pool, [0, 9], scores=np.zeros(40))
    predictions.embeddings[:] = 1.0
    picked = create_sampler(name).select(pool, [0, 9], 12, predictions, np.random.default_rng(0))
    assert len(set(picked.indices.tolist())) == 12
    assert len({int(pool.task[i]) for i in picked.indices}) > 1, "ties are not broken by index"


def test_samplers_by_name():
    own = RDUSampler()
    assert create_sampler(own) is own
    assert {"random", "fasor", "rdu", "rdu+"} < set(SAMPLERS)
    with pytest.raises(AdaptError, match="psychic") as caught:
        create_sampler("psychic")
    assert "rdu" in str(caught.value.remedy)


def test_types_share_the_budget_as_they_share_the_tasks():
    assert op_budgets(make_pool(["conv2d"] * 6 + ["matmul"] * 3 + ["pool"], 50), [], 100) == {
        "conv2d": 60, "matmul": 30, "pool": 10,
    }  # fmt: skip
    assert op_budgets(Pool(np.array([0] * 90 + [1] * 10), ("conv2d", "matmul")), [], 10) == {"conv2d": 5, "matmul": 5}
    full = op_budgets(Pool(np.array([0] * 3 + [1] * 40), ("pool", "conv2d")), [], 20)
    assert full == {"pool": 3, "conv2d": 17}, "what a small type cannot fill goes to the others"


@pytest.mark.parametrize("name", ["rdu", "rdu+", "strata"])
def test_every_operator_type_gets_its_share_over_the_rounds(name):
    pool = make_pool(["conv2d"] * 6 + ["matmul"] * 3 + ["pool"], 20)
    picked = create_sampler(name).select(pool, [0], 49, predict_pool(pool, [0]), np.random.default_rng(0))
    assert Counter(r.op for r in picked.reasons) == {"conv2d": 29, "matmul": 15, "pool": 5}
    pool, rng = make_pool(["conv2d", "matmul", "softmax", "pool", "norm", "reduce"], 10), np.random.default_rng(0)
    labeled: list[int] = [0]
    for number in range(1, 6):
        predictions = predict_pool(pool, labeled, number)
        labeled += create_sampler(name).select(pool, labeled, 1, predictions, rng, round=number).indices.tolist()
    assert {pool.op(i) for i in labeled} == set(pool.ops)


@settings(max_examples=40, deadline=None)
@given(pools, st.integers(1, 40), st.integers(1, 5), st.integers(0, 9), st.integers(0, 9))
def test_a_types_tasks_are_level_in_blocks(pool, k, block, known, seed):
    rng = np.random.default_rng(seed)
    first = task_budgets(pool, [], min(known + 1, len(pool)), rng, block)
    labeled = np.concatenate([np.flatnonzero(pool.task == task)[:n] for task, n in enumerate(first)]).astype(int)
    if len(labeled) == len(pool):
        return
    budgets = task_budgets(pool, labeled, k, rng, block)
    assert budgets.sum() == min(k, len(pool) - len(labeled))
    for op, units in op_budgets(pool, labeled, int(budgets.sum())).items():
        own = np.array([name == op for name in pool.ops])
        assert budgets[own].sum() == units
        total = (pool.counts(labeled) + budgets)[own]
        begun = (total % block > 0) & (total < len(pool) // len(pool.ops))
        assert begun.sum() <= (1 if block > 1 else 0)
        assert np.ptp(total) <= block, "no task has two blocks before each has one"
