"""Predictions for a pool: embeddings that scores are linear in, uncertainty, expected cost."""

from __future__ import annotations

import numpy as np
import pytest
from sampling_kit import make_pool, predict_pool, uncertainty
from tchub.zoo.adapt.sampling import MeasuringCost, PoolPredictions
from tchub.zoo.models import create, get_architecture, list_architectures
from torch import nn


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
