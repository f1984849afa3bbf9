"""Small networks of every architecture, and measured programs that they can learn to rank."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import torch
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
