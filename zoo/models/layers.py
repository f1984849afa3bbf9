"""Layers that several architectures share.

Half of a batch and more is padding, so rows travel *packed*: the filled rows of all programs in one matrix,
(filled, width), beside the mask that says where they belong, (batch, rows). Layers that look at one row at a time
need nothing else; `unpack` puts rows back where programs must be seen whole.
"""

from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional

from .errors import ModelConfigError


def unpack(rows: Tensor, mask: Tensor) -> Tensor:
    """Return packed rows (filled, width) in their programs, with zeros between: (batch, rows, width)."""
    out = rows.new_zeros(*mask.shape, rows.shape[-1])
    out[mask] = rows
    return out


def sum_programs(rows: Tensor, mask: Tensor) -> Tensor:
    """Return packed rows (filled, width) summed by program: (batch, width)."""
    return unpack(rows, mask).sum(dim=1)


def mlp(*widths: int, last_relu: bool = False) -> nn.Sequential:
    """Return linear layers from width to width with a ReLU between them, and after the last where wanted."""
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
        """Mix packed rows (filled, width) of the same program; mask: (batch, rows)."""
        # The softmax of a program without rows would have no value: let it read its zeros.
        readable = mask | ~mask.any(dim=1, keepdim=True)
        q, k, v = unpack(self.qkv(h), mask).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=readable[:, None, None, :])
        return self.out(mixed.transpose(1, 2).flatten(-2)[mask])


class EncoderLayer(nn.Module):
    """A Transformer's: attention and two linear layers, each added to its input and then normalised.

    `dropout`: share of the numbers dropped from what is added, in training.
    """

    def __init__(self, width: int, heads: int, feedforward: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention = SelfAttention(width, heads)
        self.feedforward = mlp(width, feedforward, width)
        self.norm_attention = nn.LayerNorm(width)
        self.norm_feedforward = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, h: Tensor, mask: Tensor) -> Tensor:
        """Mix packed rows (filled, width) of the same program; mask: (batch, rows)."""
        h = self.norm_attention(h + self.dropout(self.attention(h, mask)))
        return self.norm_feedforward(h + self.dropout(self.feedforward(h)))


def check_heads(width: int, heads: int) -> None:
    """Raise ModelConfigError unless each attention head takes an equal share of the width."""
    if width % heads:
        raise ModelConfigError(
            f"{width} columns cannot be shared by {heads} attention heads",
            remedy="make the hidden width a multiple of the number of attention heads",
        )
