"""TabNet on statements (Arik and Pfister 2021; papers: ATFormer, table 14)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from .layers import sum_programs
from .registry import register
from .statements import SCHEMAS, StatementConfig, StatementModel


@dataclass(frozen=True)
class TabNetConfig(StatementConfig):
    """Sizes of `TabNet`; the defaults are ATFormer's (table 14).

    Attributes:
        hidden: width of the feature transformers.
        decision: n_d, columns of a step's decision.
        attention: n_a, columns that choose what the next step reads.
        steps: n_steps.
        gamma: how freely a column may be read again: 1 is once.
    """

    hidden: int = 256
    decision: int = 1
    attention: int = 8
    steps: int = 3
    gamma: float = 1.3


@register("tabnet", TabNetConfig, schemas=SCHEMAS, paper="ATFormer, table 14", inputs="statements")
class TabNet(StatementModel):
    """Steps that each read a few columns of a statement, chosen by a sparse attention.

    The decisions of all steps are added up and one linear layer makes them a statement's score; a program's
    is the sum over its statements. Every step shares one gated layer and has one of its own.

    Three things differ from TabNet's paper. Batch normalisation is layer normalisation, since a batch here holds
    the programs of a few tasks, and a program's score must not depend on what it is scored with. And table 14
    has a hidden width of 256 beside n_d + n_a = 9: the gated layers are that wide, and each step projects
    them to its 9 columns. Decisions are not rectified: of one column that would leave half of the statements
    with a constant score.

    636,052 parameters for 174 columns, 2.43 MiB in float32; no paper gives a size.
    """

    config: TabNetConfig

    def __init__(self, config: TabNetConfig) -> None:
        super().__init__(config)
        c = config
        self.shared = GatedLayer(c.width, c.hidden)
        self.transformers = nn.ModuleList(FeatureTransformer(c) for _ in range(c.steps + 1))
        self.attentions = nn.ModuleList(
            nn.Sequential(nn.Linear(c.attention, c.width), nn.LayerNorm(c.width)) for _ in range(c.steps)
        )
        self.decoder = nn.Linear(c.decision, 1)

    def forward(self, x: Tensor) -> Tensor:
        rows, mask = self.pack(x)
        transform, *steps = self.transformers
        split = [self.config.decision, self.config.attention]
        _, choice = transform(self.shared(rows)).split(split, dim=-1)
        free, decision = torch.ones_like(rows), rows.new_zeros(())
        for attention, step in zip(self.attentions, steps, strict=True):
            columns = sparsemax(attention(choice) * free)
            free = free * (self.config.gamma - columns)
            partial, choice = step(self.shared(rows * columns)).split(split, dim=-1)
            decision = decision + partial
        return sum_programs(self.decoder(decision), mask).squeeze(-1)


class GatedLayer(nn.Module):
    """A linear layer, normalised, of which one half gates the other."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 2 * hidden)
        self.norm = nn.LayerNorm(2 * hidden)

    def forward(self, x: Tensor) -> Tensor:
        return functional.glu(self.norm(self.linear(x)), dim=-1)


class FeatureTransformer(nn.Module):
    """A step's own gated layer after the shared one, and a projection."""

    def __init__(self, config: TabNetConfig) -> None:
        super().__init__()
        self.gated = GatedLayer(config.hidden, config.hidden)
        self.out = nn.Linear(config.hidden, config.decision + config.attention)

    def forward(self, h: Tensor) -> Tensor:
        # TabNet scales a residual sum so that its variance stays.
        return self.out((h + self.gated(h)) * math.sqrt(0.5))


def sparsemax(scores: Tensor) -> Tensor:
    """Return the nearest point of the probability simplex along the last dimension (Martins and Astudillo 2016).

    Like softmax it is positive and sums to one, but most of it is exactly zero. Half-precision scores are
    projected in float32, since the sum of many has no room in 8 bits of mantissa.
    """
    z = scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores
    ordered = z.sort(dim=-1, descending=True).values
    ranks = torch.arange(1, z.shape[-1] + 1, device=z.device, dtype=z.dtype)
    excess = ordered.cumsum(dim=-1) - 1
    support = (ranks * ordered > excess).sum(dim=-1, keepdim=True)
    threshold = excess.gather(-1, support - 1) / support
    return (z - threshold).clamp_min(0).to(scores.dtype)
