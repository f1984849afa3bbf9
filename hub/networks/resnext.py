"""ResNeXt (Xie et al. 2017), the one network of the papers' test set that `transformers` does not have."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn


def _conv_norm(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class Bottleneck(nn.Module):
    """1x1 reduce, grouped 3x3, 1x1 expand, and the shortcut."""

    def __init__(self, inputs: int, width: int, outputs: int, stride: int, groups: int) -> None:
        super().__init__()
        self.reduce = _conv_norm(inputs, width, 1)
        self.grouped = _conv_norm(width, width, 3, stride, groups)
        self.expand = _conv_norm(width, outputs, 1)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else _conv_norm(inputs, outputs, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.grouped(torch.relu(self.reduce(x))))
        return torch.relu(self.expand(y) + self.shortcut(x))


class ResNeXt(nn.Module):
    """ResNeXt for image classification: (1, 3, H, W) to (1, labels).

    Args:
        groups: cardinality; `width_per_group`: channels a group in the first stage.
        depths: blocks a stage.
        labels: classes.
    """

    def __init__(
        self,
        groups: int = 32,
        width_per_group: int = 4,
        depths: Sequence[int] = (3, 4, 6, 3),
        labels: int = 1000,
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(_conv_norm(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        blocks: list[nn.Module] = []
        inputs = 64
        for stage, depth in enumerate(depths):
            width, outputs = groups * width_per_group * 2**stage, 256 * 2**stage
            for index in range(depth):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(Bottleneck(inputs, width, outputs, stride, groups))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, labels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(x)).mean(dim=(2, 3)))
