"""A small TileNet, programs that it can learn to rank, and what a method may learn of them."""

from __future__ import annotations

import numpy as np
import torch
from tchub.zoo.adapt.fine_tune import FineTuneConfig
from tchub.zoo.adapt.method import SourceData, TrainingSet
from tchub.zoo.devices import get_device
from tchub.zoo.models import CostModel, create
from tchub.zoo.training import RankingDataset

QUICK = FineTuneConfig(epochs=6, patience=3, learning_rate=2e-3, head_learning_rate=4e-3, anchor=0.0, refit=False)
NET = {"hidden": 16, "embedding": 4, "layers": 2}


def line_data(tasks: int = 6, programs: int = 10, seed: int = 0, noise: float = 0.0) -> RankingDataset:
    """Programs whose log latency is a line in their features."""
    rng = np.random.default_rng(seed)
    n = tasks * programs
    features = rng.uniform(0.1, 1, (n, 1, 160)).astype(np.float32)
    cost = 3 * features[:, 0, 0] - 3 * features[:, 0, 3] + noise * rng.normal(size=n)
    group = np.repeat(np.arange(tasks), programs)
    names = tuple(f"task{i}" for i in range(tasks))
    return RankingDataset(features, np.exp(cost) * (1e-3 * (1 + group)), group, names, np.ones(tasks))


def tiny_tilenet() -> CostModel:
    torch.manual_seed(0)
    model = create("tilenet", **NET)
    model.prepare(torch.from_numpy(line_data().features))
    return model.eval()


def training_set(model: CostModel, data: RankingDataset, **more) -> TrainingSet:
    return TrainingSet(model, data, data.features, get_device("epyc"), config=QUICK, **more)


def source(name: str, device: str, seed: int) -> SourceData:
    return SourceData(name, get_device(device), line_data(tasks=4, programs=8, seed=seed))
