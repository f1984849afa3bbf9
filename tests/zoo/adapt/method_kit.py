"""Small networks, programs that they can learn to rank, and what a method may learn of them."""

from dataclasses import fields

import numpy as np
import torch
from tchub.zoo.adapt.fine_tune import FineTuneConfig
from tchub.zoo.adapt.method import SourceData, TrainingSet
from tchub.zoo.devices import get_device
from tchub.zoo.models import CostModel, create, get_architecture, list_architectures
from tchub.zoo.training import RankingDataset

NETWORKS = list_architectures()
_TINY = {"hidden": 16, "d_model": 16, "head": 8, "d_state": 4, "feedforward": 24, "dt_rank": 2}


def small(arch: str = "tcl", width: int = 6, seed: int = 0, hardware: bool = False) -> CostModel:
    """With random weights, in evaluation mode."""
    torch.manual_seed(seed)
    known = {f.name for f in fields(get_architecture(arch).config)}
    return create(arch, width=width, hardware=hardware, **{k: v for k, v in _TINY.items() if k in known}).eval()


def make_data(
    tasks: int = 6, programs: int = 16, seed: int = 0, noise: float = 0.0, width: int = 6, rows: int = 5
) -> RankingDataset:
    """Programs whose latency is a smooth function of the features, each task on a scale of its own."""
    rng = np.random.default_rng(seed)
    n = tasks * programs
    features = rng.uniform(0.1, 1, (n, rows, width)).astype(np.float32)
    group = np.repeat(np.arange(tasks), programs)
    cost = features[:, :, 0].sum(1) - 2 * features[:, :, 3].sum(1) + noise * rng.normal(size=n)
    latency = np.exp(cost / 2) * (1e-3 * (1 + group))
    names = tuple(f"task{i}" for i in range(tasks))
    return RankingDataset(features, latency, group.astype(np.int64), names, np.ones(tasks))


def weights_of(model: CostModel) -> torch.Tensor:
    """All parameters in one vector."""
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def state_of(model: CostModel) -> dict[str, torch.Tensor]:
    """A copy of all tensors, buffers too."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def same_state(model: CostModel, state: dict[str, torch.Tensor]) -> bool:
    """Bit for bit."""
    return all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


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
