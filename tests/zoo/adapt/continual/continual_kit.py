"""A toy of devices for the tests of continual learning: which column makes a program fast is the device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from tchub.zoo.adapt.continual import ContinualConfig, start_base
from tchub.zoo.models import CostModel, ProgressiveNetwork, create
from tchub.zoo.training import RankingDataset, evaluate_model, train

WIDTH = 6
SMALL = replace(ContinualConfig().recipe, groups_per_batch=3, programs_per_group=8, average=0.0)
FAST = ContinualConfig(
    learn_epochs=4, distill_epochs=4, recipe=SMALL, learn_rate=0.01,
    distill_rate=0.01, distill_period=10,
)  # fmt: skip


def device_data(column: int, tasks: int = 6, each: int = 24, seed: int = 0) -> RankingDataset:
    """A device on which the speed of a program is one of its columns; the last column says which device it is."""
    rng = np.random.default_rng([seed, column])
    group = np.repeat(np.arange(tasks), each)
    x = rng.standard_normal((len(group), 1, WIDTH)).astype(np.float32)
    x[:, 0, -1] = column
    speed = x[:, 0, column]
    return RankingDataset(x, np.exp(-speed - 5), group, tuple(f"t{i}" for i in range(tasks)), np.ones(tasks))


def new_model(arch: str = "tenset-mlp", seed: int = 0) -> CostModel:
    torch.manual_seed(seed)
    return create(arch, width=WIDTH, hidden=16)


def first_base() -> ProgressiveNetwork:
    """A base that knows device 0."""
    model = new_model()
    train(model, device_data(0), None, replace(FAST, learn_epochs=12, learn_rate=0.01).learning())
    return start_base(model, device_data(0), FAST, lateral=4)


def accuracy(model: CostModel, column: int) -> float:
    return evaluate_model(model, device_data(column, seed=9))["pairwise"]


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def moved(before: dict[str, torch.Tensor], model: torch.nn.Module) -> set[str]:
    """Parts of a base of which any bit is another."""
    return {n.split(".")[0] for n, t in model.state_dict().items() if not torch.equal(t, before[n])}
