"""A tiny network, which tests tune and compile for real."""

from __future__ import annotations

import torch


class Tiny(torch.nn.Module):
    """Two layers; two outputs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(24, 32), torch.nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = torch.relu(self.first(x))
        return self.second(h), h.sum(1)
