"""Samplers: properties of all, the criterion of each, and the predictions that they choose by."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tchub.zoo.adapt.errors import AdaptError
from tchub.zoo.adapt.sampling import (
    SAMPLERS,
    FasorSampler,
    MeasuringCost,
    Pool,
    PoolPredictions,
    RDUPlusSampler,
    RDUSampler,
    StratifiedSampler,
    create_sampler,
)
from tchub.zoo.adapt.sampling.pool import op_budgets, task_budgets
from tchub.zoo.models import create, get_architecture, list_architectures
from torch import nn


def make_pool(ops: list[str], per_task: int) -> Pool:
    return Pool(np.repeat(np.arange(len(ops)), per_task), tuple(ops))


def scores_only(scores, labeled=()) -> PoolPredictions:
    """Predictions for samplers that use no more than scores."""
    return PoolPredictions(np.asarray(scores), labeled, np.ones(len(labeled)), lambda: np.zeros((len(scores), 1)))


def predict_pool(pool: Pool, labeled, seed: int = 0, scores=None, latency=None) -> PoolPredictions:
    """Predictions of a model whose embedding determines the latency; `labeled` ran unless their latency is given."""
    rng = np.random.default_rng(seed)
    embeddings = rng.normal(size=(len(pool), 6)).astype(np.float32)
    scores = embeddings @ rng.normal(size=6) if scores is None else np.asarray(scores)
    labeled = np.asarray(labeled, dtype=np.int64)
    latency = np.exp(-scores[labeled] + 0.1 * rng.normal(size=len(labeled))) if latency is None else latency
    return PoolPredictions(
        scores, labeled, latency, lambda: embeddings, task=pool.task, features=embeddings[:, None, :]
    )


every_sampler = pytest.mark.parametrize("name", SAMPLERS)
pools = st.builds(
    make_pool,
    st.lists(st.sampled_from(["conv2d", "matmul", "softmax", "pool"]), min_size=1, max_size=8),
    st.integers(1, 6),
)


@every_sampler
@settings(max_examples=25)
@given(pools, st.integers(1, 60), st.integers(0, 6), st.integers(0, 99), st.sampled_from(["none", "failed", "ran"]))
def test_picks_are_distinct_unlabeled_and_exactly_as_many_as_asked(name, pool, k, known, seed, model):
    """Without a model, with labels that all failed, and with labels."""
    rng = np.random.default_rng(seed)
    labeled = rng.choice(len(pool), min(known, len(pool) - 1), replace=False)
    latency = np.full(len(labeled), np.nan) if model == "failed" else None
    predictions = None if model == "none" else predict_pool(pool, labeled, seed, latency=latency)
    picked = create_sampler(name).select(pool, labeled, k, predictions, rng, round=3)
    indices = picked.indices.tolist()
    assert len(indices) == min(k, len(pool) - len(labeled))
    assert len(set(indices)) == len(indices)
    assert not set(indices) & set(labeled.tolist())
    assert [r.index for r in picked.reasons] == indices
    assert {(r.round, r.op) for r in picked.reasons} <= {(3, op) for op in pool.ops}


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


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@given(st.integers(0, 10_000), st.integers(1, 20), st.integers(1, 4))
def test_every_pick_of_rdu_is_the_best_by_the_quadratic_definition(seed, k, known):
    """Replays algorithm 1 by definition: each reason holds its equations, and no open program had more."""
    chance = np.random.default_rng(seed)
    pool = make_pool(["conv2d", "conv2d", "matmul", "softmax"], 8)
    scores = chance.normal(size=len(pool))
    labeled = list(chance.choice(len(pool), known, replace=False))
    left = Counter(op_budgets(pool, labeled, k))
    f = (scores - scores.min()) / np.ptp(scores)
    for reason in RDUSampler().select(pool, labeled, k, scores_only(scores, labeled), chance).reasons:
        open_ = [i for i in range(len(pool)) if i not in labeled and left[pool.op(i)] > 0]
        d = np.array([min(abs(x - y) for y in f[labeled]) for x in f[open_]])  # equation 1
        u = np.array([np.var([x, *f[labeled]]) for x in f[open_]])  # equations 2 and 3
        own = open_.index(reason.index)
        assert reason.diversity == pytest.approx(d[own], abs=1e-9)
        assert reason.uncertainty == pytest.approx(u[own], abs=1e-9)
        assert reason.total == pytest.approx(f[reason.index] * d[own] + u[own], abs=1e-9)
        assert reason.total >= (f[open_] * d + u).max() - 1e-9
        labeled.append(reason.index)
        left[reason.op] -= 1
    assert sum(left.values()) == 0, "no unit of the budget is lost"


def test_a_stratified_choice_levels_the_tasks():
    pool = Pool(np.repeat(np.arange(4), [20, 20, 20, 2]), ("conv2d",) * 4)
    labeled = [0, 1, 2, 20]
    picked = StratifiedSampler().select(pool, labeled, 10, None, rng())
    assert pool.counts([*labeled, *picked.indices]).tolist() == [4, 4, 4, 2]


def test_fasor_spends_on_tasks_that_are_unlike_each_other(monkeypatch):
    """Tasks 0 to 8 are one kind, 9 and 10 are two others: three tasks suffice."""
    ramp = np.arange(8.0)
    kinds = np.stack([ramp] * 9 + [-ramp, np.abs(ramp - 3.4)])
    pool = make_pool(["conv2d"] * 11, 20)
    predictions = PoolPredictions(np.zeros(220), [], np.empty(0), list, features=kinds[pool.task][:, None])
    monkeypatch.setattr("tchub.zoo.adapt.sampling.sampler.FASOR_TASKS", 3)
    chosen = Counter(pool.task[FasorSampler().select(pool, [], 30, predictions, rng()).indices].tolist())
    assert {9, 10} < set(chosen)
    assert set(chosen.values()) == {10}
    monkeypatch.setattr("tchub.zoo.adapt.sampling.sampler.FASOR_TASKS", 1)
    more = FasorSampler().select(pool, [], 50, predictions, rng())
    assert len(np.unique(pool.task[more.indices])) == 3, "further tasks follow when the chosen ones are used up"


def test_fasor_keeps_its_tasks_over_the_rounds():
    """Of tasks with many programs a few describe each: another few, and others would be unlike each other."""
    pool = make_pool(["conv2d"] * 30, 80)
    labeled: list[int] = []
    for number in range(4):
        predictions, chance = predict_pool(pool, labeled), np.random.default_rng([5, number])
        labeled += create_sampler("fasor").select(pool, labeled, 40, predictions, chance).indices.tolist()
        assert len(np.unique(pool.task[labeled])) == 10


@given(st.sampled_from(["rdu+", "strata"]), st.integers(1, 50), st.integers(1, 50))
def test_one_program_of_each_even_part_of_the_scores_is_picked(name, n, k):
    pool, scores = make_pool(["conv2d"], n + 1), -np.arange(n + 1.0)
    picked = create_sampler(name).select(pool, [n], k, predict_pool(pool, [n], scores=scores), rng())
    ranks = sorted(picked.indices.tolist(), reverse=name == "strata")
    parts = np.array_split(np.arange(n)[:: -1 if name == "strata" else 1], min(k, n))
    assert all(rank in part for rank, part in zip(ranks, parts, strict=True))


def test_rdu_plus_fills_the_tasks_that_were_begun_before_it_begins_others():
    pool = make_pool(["conv2d"] * 30, 40)
    labeled = np.flatnonzero(np.isin(pool.task, [3, 8]))[::8]
    picked = create_sampler("rdu+").select(pool, labeled, 38, predict_pool(pool, labeled), rng())
    counts = pool.counts(np.concatenate([labeled, picked.indices]))
    assert (counts[3], counts[8]) == (16, 16)
    assert sorted(counts[counts > 0].tolist()) == [16, 16, 16]
    ranked = replace(pool, to_rank=True)
    picked = create_sampler("rdu+").select(ranked, [0], 59, predict_pool(ranked, [0]), rng())
    assert set(ranked.counts([0, *picked.indices])) == {2}, "tasks that are to be ranked themselves are level"


def test_a_pick_of_rdu_plus_counts_as_measured_for_the_next():
    """The rank-one update is the posterior with that program among the labeled, at the noise of the labels."""
    pool = make_pool(["conv2d"], 50)
    predictions = predict_pool(pool, np.arange(12))
    picked = RDUPlusSampler().select(pool, np.arange(12), 3, predictions, rng())
    layer = predictions.last_layer
    precision = np.linalg.inv(layer.covariance)
    for reason in picked.reasons:
        z = layer.inputs[reason.index].astype(float)
        assert reason.uncertainty == pytest.approx(np.sqrt(z @ np.linalg.inv(precision) @ z), rel=1e-4)
        precision += np.outer(z, z) / layer.noise


@pytest.mark.parametrize("arch", list_architectures())
def test_scores_of_every_network_are_linear_in_its_embeddings(arch):
    """Up to the bias, which a network that sums over rows adds once a row."""
    model = create(arch)
    rows = 1 if "nest" in "".join(get_architecture(arch).schemas) else 9
    x = np.random.default_rng(0).random((7, rows, model.config.width), dtype=np.float32)
    for number in range(7 if rows > 1 else 0):
        x[number, 2 + number % 4 : rows - model.config.hardware] = 0  # programs of unlike lengths
    predictions = PoolPredictions.of(model, x, [], np.empty(0))
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    linear = [layer for layer in layers if layer.out_features == 1] or layers[-1:]
    basis = np.stack([np.ones(7), (x != 0).any(axis=2).sum(axis=1)], axis=1)
    errors = []
    for weight in (layer.weight.detach().numpy()[0] for layer in linear):
        if len(weight) == predictions.embeddings.shape[1]:
            rest = predictions.scores - predictions.embeddings @ weight
            errors.append(np.abs(rest - basis @ np.linalg.lstsq(basis, rest, rcond=None)[0]).max())
    assert min(errors) < 1e-4
    assert model.training, "the model is left as it was"


def test_the_level_of_a_task_is_no_uncertainty():
    """Embeddings that differ between tasks alone predict no order within them."""
    constant = np.repeat([[1.0, 0.0], [0.0, 3.0]], 5, axis=0).astype(np.float32)
    task = np.repeat([0, 1], 5)
    predictions = PoolPredictions(np.arange(10.0), [0, 5], np.ones(2), lambda: constant, task=task)
    layer = predictions.last_layer
    assert not np.einsum("np,pq,nq->n", layer.inputs, layer.covariance, layer.inputs).any()


def test_a_fast_program_is_expected_to_cost_less_and_failed_ones_are_ignored():
    scores = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 0.0, 4.0])
    task = np.array([0, 0, 0, 0, 0, 1, 1])
    latency = np.array([np.exp(0.0), np.exp(-2.0), np.nan])
    cost = MeasuringCost(build=0.5, runs=10)
    predictions = PoolPredictions(scores, [0, 2, 4], latency, lambda: np.zeros((7, 1)), task=task, cost=cost)
    np.testing.assert_allclose(predictions.seconds()[:5], 0.5 + 10 * np.exp(-scores[:5]))
    assert predictions.seconds()[5] > predictions.seconds()[6], "a task without labels has the others' level"
    unlabeled = PoolPredictions(np.arange(3.0), [], np.empty(0), lambda: np.zeros((3, 1)), cost=MeasuringCost(2.0))
    assert unlabeled.seconds().tolist() == [2.0, 2.0, 2.0]
