"""Equations 9 to 11, drift and the Fisher diagonal against plain numpy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from continual_kit import FAST, WIDTH, device_data, first_base, new_model
from tchub.zoo.adapt.continual import ContinualConfig, fisher_diagonal, start_base
from tchub.zoo.adapt.continual.phases import DistillationModel, drift, gate, remember, reordered
from tchub.zoo.models import ProgressiveNetwork, create
from tchub.zoo.training import RankingDataset, get_loss

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def first() -> ProgressiveNetwork:
    """A base that knows device 0."""
    return first_base()


def numpy_loss(scores: np.ndarray, labels: np.ndarray) -> float:
    """`pairwise_rank` of one batch of full groups."""
    losses = []
    for s, y in zip(scores, labels, strict=True):
        terms = [np.log1p(np.exp(s[j] - s[i])) for i in range(len(s)) for j in range(len(s)) if y[i] > y[j]]
        losses.append(np.mean(terms))
    return float(np.mean(losses))


def test_the_gate_is_equations_10_and_11() -> None:
    e = np.array([0.3, 0.9, 0.5, 0.7])
    expected = 1 - (e - e.min()) / (e.max() - e.min())
    np.testing.assert_allclose(gate(torch.from_numpy(e), e.min(), e.max()).numpy(), expected)
    assert gate(torch.tensor([0.4, 0.4]), 0.4, 0.4).tolist() == [1, 1]  # no batch is worse than another
    assert gate(torch.tensor([0.1, 2.0]), 0.3, 0.9).tolist() == [1, 0]  # batches of later epochs


def test_the_loss_is_equation_9() -> None:
    base, teacher = new_model(seed=1).double(), new_model(seed=2).double()
    x = torch.from_numpy(device_data(0, tasks=2, each=5).features).double()
    labels, mask = (
        torch.rand(2, 5, generator=torch.Generator().manual_seed(3)).double(),
        torch.ones(2, 5, dtype=torch.bool),
    )
    importance = {
        n: torch.rand(p.shape, generator=torch.Generator().manual_seed(4)).double() for n, p in base.named_parameters()
    }
    config = ContinualConfig(beta=0.3, strength=7.0)
    distillation = DistillationModel(base, teacher, np.array([0.2, 3.0]), config, importance)
    way = {
        n: 0.01 * torch.randn(p.shape, generator=torch.Generator().manual_seed(5)).double()
        for n, p in base.named_parameters()
    }
    with torch.no_grad():
        for name, p in base.named_parameters():
            p.add_(way[name])

    got = distillation.training_loss(distillation.describe(x), labels, mask, get_loss("pairwise_rank"), RNG)

    student, taught = (m(x).detach().numpy().reshape(2, 5) for m in (base, teacher))
    phi = 1 - (numpy_loss(taught, labels.numpy()) - 0.2) / (3.0 - 0.2)
    # As a teacher's labels its scores would do: this loss looks at their order only.
    expected = 0.3 * numpy_loss(student, labels.numpy()) + 0.7 * phi * numpy_loss(student, taught)
    expected += 7.0 / 2 * sum(float((importance[n] * way[n].square()).sum()) for n in importance)
    assert float(got.detach()) == pytest.approx(expected, rel=1e-9)


def test_a_teacher_changes_the_order_of_labels_not_their_values() -> None:
    labels = torch.tensor([[1.0, 0.5, 0.25, 0.0], [0.2, 1.0, 0.0, 0.0]])
    mask = torch.tensor([[True, True, True, False], [True, True, False, False]])
    scores = torch.tensor([[-5.0, 80.0, 3.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    assert reordered(labels, scores, mask).tolist() == [[0.25, 1.0, 0.5, 0.0], [1.0, pytest.approx(0.2), 0.0, 0.0]]


def described_data(device: int) -> RankingDataset:
    """`device_data` for a network that reads the device from the last row, as a code of its own."""
    data = device_data(device, tasks=3)
    x = np.concatenate([data.features, np.zeros_like(data.features)], axis=1)
    x[:, 0, -1], x[:, 1, device] = 0, 1
    return replace(data, features=x)


def test_a_base_keeps_the_description_of_each_device_once() -> None:
    model = create("tcl", width=WIDTH, hardware=True, hidden=16, d_model=16, head=8)
    base = start_base(model, described_data(0), FAST, lateral=2)
    for device in (0, 2, 0):
        remember(base, described_data(device), FAST)
    known = base.known_devices()
    assert known is not None
    assert known.argmax(dim=1).tolist() == [2, 0]
    assert start_base(new_model(), device_data(0), FAST).known_devices() is None  # reads no device


def test_drift_is_of_differences_within_a_group() -> None:
    mask = torch.tensor([[True, True, False], [True, True, True]])
    was = torch.tensor([1.0, 3.0, 0.0, 3.0, 6.0])
    level = torch.tensor([5.0, 5.0, -7.0, -7.0, -7.0])  # of a task; no order hangs on it
    still = torch.zeros(5)
    assert float(drift(torch.stack([was, was + level, still], dim=1), mask)) == pytest.approx(0)
    turned = torch.tensor([3.0, 1.0, 0.0, 3.0, 6.0])
    # The first group's differences from its mean, -1 and 1, turn over: (2^2 + 2^2) / 1, a mean over 5 programs.
    assert float(drift(torch.stack([was, turned, still + 0.5], dim=1), mask)) == pytest.approx(8 / 5 + 0.5)


def test_importance_is_the_squared_gradient_of_the_loss() -> None:
    """Against differences of the loss, for a data set of one group."""
    model, data = new_model().double(), device_data(2, tasks=1, each=7)
    importance = fisher_diagonal(model.double(), data, replace(FAST, recipe=replace(FAST.recipe, programs_per_group=7)))
    labels, mask = torch.from_numpy(data.labels)[None], torch.ones(1, 7, dtype=torch.bool)
    x = torch.from_numpy(data.features).double()

    def loss() -> float:
        with torch.no_grad():
            return float(model.training_loss(model.describe(x), labels, mask, get_loss(FAST.recipe.loss), RNG))

    for name in ("decoder.weight", "encoder.0.bias"):
        p = model.get_parameter(name).view(-1)
        for i in range(0, p.numel(), 5):
            with torch.no_grad():
                p[i] += 1e-5
                up = loss()
                p[i] -= 2e-5
                slope = (up - loss()) / 2e-5
                p[i] += 1e-5
            assert float(importance[name].view(-1)[i]) == pytest.approx(slope**2, rel=1e-3, abs=1e-9)
