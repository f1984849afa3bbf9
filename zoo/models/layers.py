"""Layers that several architectures share."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional

from .errors import ModelConfigError


def mlp(*widths: int, last_relu: bool = False) -> nn.Sequential:
    """Linear layers from width to width with a ReLU between them, and after the last where wanted."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*(layers if last_relu else layers[:-1]))


class Residual(nn.Module):
    """h + relu(W h + b), of the width of h."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, h: Tensor) -> Tensor:
        return h + functional.relu(self.linear(h))


class SelfAttention(nn.Module):
    """Multi-head self-attention over the rows of a program, without positions: rows are a set to it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, h: Tensor, mask: Tensor) -> Tensor:
        """Mixes rows.

        Args:
            h: (batch, rows, width).
            mask: (batch, rows), False for rows that no other row may read. A program of such rows alone reads
                them all, since an empty softmax has no value.
        """
        readable = mask | ~mask.any(dim=1, keepdim=True)
        q, k, v = self.qkv(h).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=readable[:, None, None, :])
        return self.out(mixed.transpose(1, 2).flatten(-2))


def check_heads(arch: str, width: int, heads: int) -> None:
    """Each attention head takes an equal share of the width.

    Raises:
        ModelConfigError: it cannot.
    """
    if width % heads:
        raise ModelConfigError(
            f"{arch}: {width} columns cannot be shared by {heads} attention heads",
            remedy="make the hidden width a multiple of the number of attention heads",
            arch=arch,
            setting="attention_heads",
        )
