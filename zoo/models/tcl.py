"""TCL's cost model: three linear layers, one Mamba block, three linear layers (papers: TCL, section 5)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from .base import CostModel, ModelConfig, drop_padding, hardware_first, row_mask
from .mamba import MambaBlock
from .registry import register


@dataclass(frozen=True)
class TCLConfig(ModelConfig):
    """Sizes of `TCL`; the defaults are the paper's (section 5.2 and the best row of table 2).

    Attributes:
        hidden: width of the first encoder layer and of the first decoder layer.
        d_model: width of the encoder's output and of the Mamba block.
        head: width of the second decoder layer.
        d_state, expand, d_conv, dt_rank: of the Mamba block; dt_rank = d_model / 16, Mamba's own choice.
        residual: adds the block's input to its output. The paper's figure shows no such path.
    """

    hidden: int = 64
    d_model: int = 128
    head: int = 32
    d_state: int = 8
    expand: int = 1
    d_conv: int = 4
    dt_rank: int = 8
    residual: bool = False


@register("tcl", TCLConfig, schemas=("tcl-cpu", "tcl-gpu"), paper="TCL, section 5")
class TCL(CostModel):
    """Mamba-based cost model of TCL, figure 5.

    Input (batch, 26, 22) on a CPU, (batch, 41, 20) on a GPU: the primitives in order, rows of zeros, and the
    device's row last. Mamba is causal, so that in this order the device could tell the primitives nothing,
    and the padding would stand between them. The model therefore reads the device's row first
    (`hardware_first`): its state then flows through every primitive, the padding comes last, and rows of
    padding are left out of the sum over rows that makes the score. A padded program thus scores exactly as
    the program alone.

    92,353 parameters for 22 columns: encoder 26,304, two normalisations 512, Mamba block 55,168, decoder
    10,369. In float32 that is 369,412 bytes = 0.352 MiB; the paper says 0.35 MB, so its MB is 2**20 bytes and
    nothing is left to explain. On a GPU's 20 columns it has 128 fewer.
    """

    config: TCLConfig

    def __init__(self, config: TCLConfig) -> None:
        super().__init__(config)
        c = config
        self.encoder = nn.Sequential(
            nn.Linear(c.width, c.hidden), nn.ReLU(),
            nn.Linear(c.hidden, c.d_model), nn.ReLU(),
            nn.Linear(c.d_model, c.d_model), nn.ReLU(),
        )  # fmt: skip
        self.norm_in = nn.LayerNorm(c.d_model)
        self.mamba = MambaBlock(c.d_model, c.d_state, c.expand, c.d_conv, c.dt_rank)
        self.norm_out = nn.LayerNorm(c.d_model)
        self.decoder = nn.Sequential(
            nn.Linear(c.d_model, c.hidden), nn.ReLU(),
            nn.Linear(c.hidden, c.head), nn.ReLU(),
            nn.Linear(c.head, 1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        if self.config.hardware:
            x = hardware_first(x)
        x = drop_padding(x)
        mask = row_mask(x)
        h = self.norm_in(self.encoder(x.to(self.norm_in.weight.dtype)))
        mixed = self.mamba(h)
        h = self.norm_out(h + mixed if self.config.residual else mixed)
        rows = self.decoder(h).squeeze(-1)
        return rows.masked_fill(~mask, 0).sum(dim=-1)
