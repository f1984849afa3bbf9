"""Tiny networks and bases for the tests of `ProgressiveNetwork`."""

from __future__ import annotations

from dataclasses import fields

import torch
from tchub.zoo.models import CostModel, ProgressiveNetwork, create, get_architecture, list_architectures

TINY = {"hidden": 16, "d_model": 16, "head": 8, "feedforward": 24, "dt_rank": 2}
NETWORKS = [name.removesuffix("-kb") for name in list_architectures("knowledge base")]


def tiny(arch: str, seed: int = 0) -> CostModel:
    torch.manual_seed(seed)
    known = {f.name for f in fields(get_architecture(arch).config)}
    return create(arch, width=10, **{k: v for k, v in TINY.items() if k in known}).eval()


def programs(n: int = 6, rows: int = 3, width: int = 10, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, rows, width, generator=torch.Generator().manual_seed(seed))


def apart(base: ProgressiveNetwork) -> ProgressiveNetwork:
    """A base whose parts and alphas are all different, as after some training."""
    g = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for p in base.parameters():
            p.add_(0.2 * torch.randn(p.shape, generator=g))
    return base
