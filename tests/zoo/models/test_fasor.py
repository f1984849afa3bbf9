"""Fasor's three heads: what the two scores are taught by, what leaves them alone, and that they are learnt."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tchub.zoo.adapt.fine_tune import batch_loss
from tchub.zoo.models import ProgressiveNetwork, create
from tchub.zoo.training import RankingDataset, TrainConfig, train
from tchub.zoo.training.dataset import epoch_batches
from tchub.zoo.training.evaluation import head_scores

SIZES = {"width": 6, "hidden": 32, "layers": 1, "attention_heads": 2, "feedforward": 32, "dropout": 0.0}
RECIPE = TrainConfig(
    arch="fasor", loss="log_ranknet", learning_rate=0.01, groups_per_batch=4, programs_per_group=8, epochs=40
)


def toy_data(tasks=8, programs=24, seed=0) -> RankingDataset:
    """Programs of three rows whose speed is the mean of a column, and whose bounds are those of two others."""
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((tasks * programs, 3, 6)).astype(np.float32)
    speed, *bounds = np.moveaxis(features[:, :, :3].mean(axis=1), 1, 0)
    group = np.repeat(np.arange(tasks, dtype=np.int64), programs)
    latency = np.exp(rng.standard_normal(tasks)[group] - speed.astype(np.float64))
    shares = 1 / (1 + np.exp(-2 * np.stack(bounds, axis=1)))
    return RankingDataset(features, latency, group, tuple(map(str, range(tasks))), np.ones(tasks), bounds=shares)


def new_model(**sizes):
    return create("fasor", seed=0, **SIZES | sizes)


def test_all_three_heads_are_learnt():
    model, data = new_model(), toy_data()
    before = head_scores(model, toy_data(seed=1))
    train(model, data, None, RECIPE)
    after = head_scores(model, toy_data(seed=1))
    assert max(before.values()) < 0.3
    assert min(after.values()) > 0.8, after
    bounds = model.bounds(data.features)
    assert 0 < bounds.min() < bounds.max() < 1
    np.testing.assert_allclose(model.forward_heads(torch.from_numpy(data.features))[:, 1:].detach(), bounds, atol=1e-6)


def test_programs_of_unknown_bounds_leave_these_heads_alone():
    data, model = toy_data(), new_model()
    one, other = (model.describe(torch.from_numpy(data.features[:9])).detach().requires_grad_() for _ in range(2))
    bounds = torch.from_numpy(data.bounds[:9].copy())
    bounds[2:5, 0] = torch.nan
    known = bounds.isfinite().all(dim=1)
    model.bound_loss(one, bounds).backward()
    model.bound_loss(other[known], bounds[known]).backward()
    assert torch.equal(one.grad, other.grad)
    assert one.grad[known, 1:].all()
    assert not one.grad[~known].any()
    assert not one.grad[:, 0].any(), "the order is no matter of theirs"
    assert model.bound_loss(one, torch.full((9, 2), torch.nan)) == 0


@pytest.mark.parametrize("known", [False, True])
def test_training_without_bounds_moves_the_score_alone(known):
    data, model = toy_data(), new_model()
    start = model.head.weight.detach().clone()
    train(model, data if known else replace(data, bounds=None), None, replace(RECIPE, epochs=1))
    moved = (model.head.weight != start).any(dim=1).tolist()
    assert moved == [True, known, known]


def test_fine_tuning_and_a_knowledge_base_learn_them_too():
    data, model = toy_data(), new_model()
    batch = next(epoch_batches(data, 4, 8, np.random.default_rng(0)))
    base = ProgressiveNetwork.around(model, seed=0).distilling()
    for network in (model, base):
        parts = (data, replace(data, bounds=None))
        known, unknown = (batch_loss(network, part, batch, "log_ranknet", np.random.default_rng(0)) for part in parts)
        assert known > unknown


def test_bounds_follow_their_programs_and_are_unknown_where_a_part_has_none():
    data = toy_data(tasks=2)
    index = np.array([30, 3, 7])
    assert np.array_equal(data.take(index).bounds, data.bounds[index])
    both = RankingDataset.concat([replace(data, bounds=None), data])
    assert np.isnan(both.bounds[: len(data)]).all()
    assert np.array_equal(both.bounds[len(data) :], data.bounds)
    assert RankingDataset.concat([replace(data, bounds=None)] * 2).bounds is None
