"""A tiny network, which tests tune and compile for real, and a pickle that shows whether it was loaded."""

import os
from pathlib import Path
from typing import Any

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


class Touch:
    """A pickle that makes a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)
