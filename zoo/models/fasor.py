"""Fasor's cost model: a lightweight Transformer with three heads, for latency, memory and arithmetic.

Paper: Fasor (Huang et al. 2024), sections 4.1 and 7.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from .base import CostModel, Loss, ModelConfig, drop_padding, hardware_first, miscalibration, row_mask
from .layers import EncoderLayer, check_heads, sum_programs
from .registry import register
from .tlp import SCHEMAS

# Where the ranking loss begins to tell scores apart that are estimates of -log(latency), see `Fasor.sharpness`.
_SHARPNESS = 1.5
# Shares below this are taken for it: programs that take a million times as long as the roofline are alike.
LEAST_SHARE = 1e-6


@dataclass(frozen=True)
class FasorConfig(ModelConfig):
    """Sizes of `Fasor`; the paper's where it names one (section 7).

    Attributes:
        hardware: the paper leaves the spec sheet out, since it did not help on other devices; with a row for the
            device (a `tcl-*` schema) it is read like a primitive.
        hidden: width; layers: encoder layers; attention_heads: of each.
        feedforward: width inside an encoder layer. The paper does not say; this is four times the hidden width, as in
            the Transformer.
        dropout: share of the numbers dropped in training.
    """

    hardware: bool = False
    hidden: int = 128
    layers: int = 4
    attention_heads: int = 8
    feedforward: int = 512
    dropout: float = 0.1

    def __post_init__(self) -> None:
        check_heads(self.hidden, self.attention_heads)


@register("fasor", FasorConfig, schemas=SCHEMAS, paper="Fasor, section 4.1")
class Fasor(CostModel):
    """A Transformer over schedule primitives whose last linear layer has three outputs.

    1. The score, an estimate of -log(latency) up to the level of the task: the paper's execution time, as far as
       programs of one task are compared.
    2. The memory-bound score: the share of the latency in which the device could move the bytes that the tiles read.
    3. The core-bound score: the share in which it could do the operations.

    The paper takes the last two from a processor's counters. Corpora hold none, so here they are the roofline's, from
    the program's tiles, the measured latency and the spec sheet (`features.nest_columns.bound_scores`). Where one of
    these is not known, these heads learn nothing of the program.

    It reads the serialised schedule configuration of section 4.1, one row a primitive, in order. Of the paper's other
    inputs the shapes are in the extents of the splits; types and reuse of the memory accesses have no row.

    796,420 parameters for 22 columns, 3.04 MiB in float32: embedding 2,944, encoder layers 198,272 each, heads 387,
    sharpness 1. The paper gives no size.
    """

    config: FasorConfig

    def __init__(self, config: FasorConfig) -> None:
        super().__init__(config)
        c = config
        self.embedding = nn.Linear(c.width, c.hidden)
        layers = [EncoderLayer(c.hidden, c.attention_heads, c.feedforward, c.dropout) for _ in range(c.layers)]
        self.blocks = nn.ModuleList(layers)
        self.head = nn.Linear(c.hidden, 3)
        # A ranking loss wants scores far apart, an estimate has a scale of its own: this factor stands between them.
        self.sharpness = nn.Parameter(torch.tensor(_SHARPNESS))
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.xavier_uniform_(weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.describe(x)[:, 0]

    def forward_heads(self, x: Tensor) -> Tensor:
        """Return score, memory-bound and core-bound score of each program, (batch, 3), the last two in [0, 1]."""
        outputs = self.describe(x)
        return torch.cat([outputs[:, :1], outputs[:, 1:].sigmoid()], dim=1)

    def describe(self, x: Tensor) -> Tensor:
        """Return the three outputs as they are, (batch, 3): the last two before the sigmoid."""
        x = drop_padding(hardware_first(x) if self.config.hardware else x)
        mask = row_mask(x)
        h = self.embedding(x[mask]) + _positions(x.shape[1], self.config.hidden).to(x).expand(*x.shape[:2], -1)[mask]
        for block in self.blocks:
            h = block(h, mask)
        return self.head(sum_programs(h, mask) / mask.sum(dim=1, keepdim=True).clamp_min(1))

    def bounds(self, features: np.ndarray) -> np.ndarray:
        return self._infer(lambda x: self.forward_heads(x)[:, 1:], features, (2,))

    def training_loss(self, rows: Tensor, labels: Tensor, mask: Tensor, loss: Loss, rng: np.random.Generator) -> Tensor:
        """Return the loss of the order, plus that of the scores as estimates of -log(latency)."""
        scores = torch.zeros_like(labels).masked_scatter(mask, rows[:, 0])
        return loss(self.sharpness.exp() * scores, labels, mask) + miscalibration(scores, labels, mask)

    def bound_loss(self, rows: Tensor, bounds: Tensor) -> Tensor:
        """Return the mean Huber loss of the logarithms of both shares, over the programs of which they are known.

        Shares span four powers of ten, and what a search asks for is their ratio.
        """
        known = bounds.isfinite().all(dim=1)
        if not known.any():
            return rows.new_zeros(())
        return functional.huber_loss(functional.logsigmoid(rows[known, 1:]), bounds[known].clamp_min(LEAST_SHARE).log())


def _positions(rows: int, width: int) -> Tensor:
    """Return the Transformer's sines and cosines of the places of rows, (rows, width)."""
    frequency = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000) / width))
    angle = torch.arange(rows)[:, None] * frequency
    return torch.stack([angle.sin(), angle.cos()], dim=2).flatten(1)[:, :width]
