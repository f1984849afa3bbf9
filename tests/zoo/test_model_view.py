"""What a model says of a pool: embeddings that its scores are linear in, how unsure it is, what measuring costs."""

from __future__ import annotations

import numpy as np
import pytest
from sampling_kit import full_view, make_pool
from tchub.zoo.adapt.view import MeasuringCost, ModelView
from tchub.zoo.models import create, list_architectures
from torch import nn

archs = list_architectures()


def make_features(arch: str, width: int, hardware: bool) -> np.ndarray:
    """Seven programs of unlike lengths."""
    rows = 1 if "nest" in "".join(get_architecture(arch).schemas) else 9
    x = np.random.default_rng(0).random((7, rows, width), dtype=np.float32)
    for number in range(7):
        if rows > 1:
            x[number, 2 + number % 4 : rows - hardware] = 0
    return x


@pytest.mark.parametrize("arch", archs)
def test_scores_of_every_network_are_linear_in_its_embeddings(arch):
    """Up to the bias, which a network that sums over rows adds once a row."""
    model = create(arch)
    x = make_features(arch, model.config.width, model.config.hardware)
    view = ModelView.of(model, x, [], np.empty(0))
    weights = [
        layer.weight.detach().numpy()[0]
        for layer in model.modules()
        if isinstance(layer, nn.Linear) and layer.out_features == 1
    ]
    rows = (x != 0).any(axis=2).sum(axis=1)
    bases = [np.stack([np.ones(7), rows], axis=1)] * len(weights)
    errors = [
        np.abs(rest - basis @ np.linalg.lstsq(basis, rest, rcond=None)[0]).max()
        for weight, basis in zip(weights, bases, strict=True)
        if len(weight) == view.embeddings().shape[1]
        for rest in [view.scores - view.embeddings() @ weight]
    ]
    assert min(errors) < 1e-4
    assert model.training, "the model is left as it was"


def test_a_label_lowers_the_uncertainty_of_its_likes():
    pool = make_pool(["conv2d"], 60)
    few = full_view(pool, np.arange(10))
    many = full_view(pool, np.arange(40))
    assert many.uncertainty().mean() < few.uncertainty().mean()
    assert np.isfinite(few.uncertainty()).all()
    assert (few.uncertainty() >= 0).all()


def test_the_level_of_a_task_is_no_uncertainty():
    """Embeddings that differ between tasks alone tell nothing of an order within them."""
    pool = make_pool(["conv2d", "matmul"], 5)
    constant = np.repeat([[1.0, 0.0], [0.0, 3.0]], 5, axis=0).astype(np.float32)
    view = ModelView(np.arange(10.0), [0, 5], np.ones(2), lambda: constant, task=pool.task)
    assert view.uncertainty().tolist() == [0.0] * 10


def test_a_pick_of_rdu_plus_counts_as_measured_for_the_next():
    """The rank-one update is the posterior with that program among the labeled, at the noise of the labels."""
    from tchub.zoo.adapt.sampling import RDUPlusConfig, RDUPlusSampler

    pool = make_pool(["conv2d"], 50)
    view = full_view(pool, np.arange(12))
    picked = RDUPlusSampler(RDUPlusConfig(cost=0)).select(pool, np.arange(12), 3, view, np.random.default_rng(0))
    layer = view.last_layer
    precision = np.linalg.inv(layer.covariance)
    for reason in picked.reasons:
        z = layer.inputs[reason.index].astype(float)
        assert reason.uncertainty == pytest.approx(np.sqrt(z @ np.linalg.inv(precision) @ z), rel=1e-4)
        precision += np.outer(z, z) / layer.noise


def test_a_fast_program_is_expected_to_cost_less_and_failed_ones_tell_nothing():
    scores = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 0.0, 4.0])
    task = np.array([0, 0, 0, 0, 0, 1, 1])
    latency = np.array([np.exp(0.0), np.exp(-2.0), np.nan])
    cost = MeasuringCost(build=0.5, runs=10)
    view = ModelView(scores, [0, 2, 4], latency, lambda: np.zeros((7, 1)), task=task, cost=cost)
    np.testing.assert_allclose(view.cost()[:5], 0.5 + 10 * np.exp(-scores[:5]))
    assert view.cost()[5] > view.cost()[6], "a task without labels has the others' level"


def test_without_labels_a_program_costs_its_build():
    view = ModelView(np.arange(3.0), [], np.empty(0), lambda: np.zeros((3, 1)), cost=MeasuringCost(build=2.0))
    assert view.cost().tolist() == [2.0, 2.0, 2.0]
