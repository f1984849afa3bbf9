"""Predictions for a pool, and the criterion of each sampler: RDU's equals the paper's quadratic definitions."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_kit import make_pool, predict_pool, scores_only, uncertainty
from tchub.zoo.adapt.sampling import (
    FasorSampler,
    MeasuringCost,
    Pool,
    PoolPredictions,
    RDUPlusSampler,
    RDUSampler,
    StratifiedSampler,
    create_sampler,
)
from tchub.zoo.adapt.sampling.pool import op_budgets
from tchub.zoo.models import create, get_architecture, list_architectures
from torch import nn


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@settings(max_examples=50)
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


def test_higher_predictions_win_at_equal_distance():
    pool = make_pool(["conv2d"], 5)
    assert RDUSampler().select(pool, [2], 1, scores_only([0.0, 0.25, 0.5, 0.75, 1.0], [2]), rng()).indices == [4]


def test_a_stratified_choice_levels_the_tasks():
    pool = Pool(np.repeat(np.arange(4), [20, 20, 20, 2]), ("conv2d",) * 4)
    labeled = [0, 1, 2, 20]
    picked = StratifiedSampler().select(pool, labeled, 10, None, rng())
    assert pool.counts([*labeled, *picked.indices]).tolist() == [4, 4, 4, 2]


def test_rdu_plus_does_not_take_twins():
    """Four twins are the least sure; one label determines all four."""
    pool = make_pool(["conv2d"], 40)
    predictions = predict_pool(pool, np.arange(6), scores=np.zeros(40))
    predictions.embeddings[36:] = 4.0
    assert set(np.argsort(uncertainty(predictions))[-4:]) == {36, 37, 38, 39}
    picked = create_sampler("rdu+").select(pool, np.arange(6), 6, predictions, rng())
    assert len({36, 37, 38, 39} & set(picked.indices.tolist())) < 4


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


@settings(max_examples=40, deadline=None)
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
    linear = [layer for layer in model.modules() if isinstance(layer, nn.Linear) and layer.out_features == 1]
    basis = np.stack([np.ones(7), (x != 0).any(axis=2).sum(axis=1)], axis=1)
    errors = []
    for weight in (layer.weight.detach().numpy()[0] for layer in linear):
        if len(weight) == predictions.embeddings.shape[1]:
            rest = predictions.scores - predictions.embeddings @ weight
            errors.append(np.abs(rest - basis @ np.linalg.lstsq(basis, rest, rcond=None)[0]).max())
    assert min(errors) < 1e-4
    assert model.training, "the model is left as it was"


def test_a_label_lowers_the_uncertainty_of_its_likes():
    pool = make_pool(["conv2d"], 60)
    few, many = (uncertainty(predict_pool(pool, np.arange(n))) for n in (10, 40))
    assert many.mean() < few.mean()
    assert (few >= 0).all()


def test_the_level_of_a_task_is_no_uncertainty():
    """Embeddings that differ between tasks alone predict no order within them."""
    constant = np.repeat([[1.0, 0.0], [0.0, 3.0]], 5, axis=0).astype(np.float32)
    task = np.repeat([0, 1], 5)
    predictions = PoolPredictions(np.arange(10.0), [0, 5], np.ones(2), lambda: constant, task=task)
    assert uncertainty(predictions).tolist() == [0.0] * 10


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
