"""Rankers of trees: that they rank, what their rows are made of, and the choice of their number."""

import numpy as np
import pytest
from tchub.zoo.models import ModelConfigError, XGBoostRanker
from tchub.zoo.training.metrics import evaluate_scores

from scripts.zoo.trees import LightGBMRanker

every_library = pytest.mark.parametrize("ranker", [XGBoostRanker, LightGBMRanker])


def data(tasks=8, programs=40, seed=0):
    """Programs of 1 to 4 statements of 3 columns; the sum of the first column makes them fast, at each task's scale."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(tasks * programs, 4, 3)).astype(np.float32)
    for row, count in zip(x, rng.integers(1, 5, len(x)), strict=True):
        row[count:] = 0
    group = np.repeat(np.arange(tasks), programs)
    latency = np.exp(-x[:, :, 0].sum(1)) * 10.0 ** (group % 3)
    best = np.array([latency[group == g].min() for g in range(tasks)])
    return x, best[group] / latency, group, latency


def fitted(ranker, **settings):
    x, labels, group, _ = data()
    return ranker(**{"rounds": 30} | settings).fit(x, labels, group)


@every_library
@pytest.mark.parametrize("pool", [True, False])
def test_ranks_the_programs_of_tasks_it_has_not_seen(ranker, pool):
    model = fitted(ranker, pool=pool)
    x, _, group, latency = data(seed=1)
    assert evaluate_scores(model.score(x), latency, group, np.ones(8))["pairwise"] > 0.8


def test_pooled_rows_by_hand():
    x = np.array([[[1, -5], [2, -3], [0, 0]], [[0, 0], [0, 0], [0, 0]]], np.float32)
    table = XGBoostRanker().table(x)
    np.testing.assert_array_equal(table, [[3, -8, 2, -3, 2], [0, 0, 0, 0, 0]])


def test_a_program_longer_than_those_learnt_from_is_refused_but_its_padding_is_not():
    model = fitted(XGBoostRanker, pool=False)
    x = np.ones((1, 5, 3), np.float32)
    with pytest.raises(ModelConfigError, match="more than 4 rows"):
        model.score(x)
    x[:, 4] = 0
    assert model.score(x).shape == (1,)


@every_library
def test_the_first_trees_are_a_ranker_too(ranker):
    model = fitted(ranker)
    x, *_ = data(seed=1)
    first = model.keep(10)
    assert 0 < first.parameter_count() < model.parameter_count()
    assert not np.array_equal(first.score(x), model.score(x))
    np.testing.assert_allclose(model.keep(30).score(x), model.score(x), rtol=1e-6)
    assert model.score(x[:0]).shape == (0,)
