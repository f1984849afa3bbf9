"""TenSet-MLP: an MLP a statement, summed over the program (papers: TLP, section 2; TCL, table 3)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from .layers import Residual, mlp, sum_programs
from .registry import register
from .statements import SCHEMAS, StatementConfig, StatementModel


@dataclass(frozen=True)
class TenSetMLPConfig(StatementConfig):
    """Sizes of `TenSetMLP`.

    Attributes:
        hidden: width of all layers.
        residuals: residual blocks after the sum.
    """

    hidden: int = 256
    residuals: int = 2


@register("tenset-mlp", TenSetMLPConfig, schemas=SCHEMAS, paper="TLP, section 2", inputs="statements")
class TenSetMLP(StatementModel):
    """The MLP cost model of TenSet.

    Two layers embed each statement, the embeddings are summed over the program, and residual blocks and one
    linear layer make the score.

    242,433 parameters for 174 columns: embedding 110,592, residual blocks 131,584, score 257. In float32 that
    is 0.925 MiB; TCL's table 3 says 0.92 MB.
    """

    config: TenSetMLPConfig

    def __init__(self, config: TenSetMLPConfig) -> None:
        super().__init__(config)
        self.encoder = mlp(config.width, config.hidden, config.hidden, last_relu=True)
        self.residuals = nn.Sequential(*(Residual(config.hidden) for _ in range(config.residuals)))
        self.decoder = nn.Linear(config.hidden, 1)

    def forward(self, x: Tensor) -> Tensor:
        statements, mask = self.pack(x)
        h = sum_programs(self.encoder(statements), mask)
        return self.decoder(self.residuals(h)).squeeze(-1)
