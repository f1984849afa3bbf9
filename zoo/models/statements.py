"""Models that read statements: the base with normalised columns, and TenSet-MLP, the plainest of them.

Papers: TLP, section 2; TCL, table 3.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .base import CostModel, ModelConfig, row_mask
from .layers import Residual, mlp, sum_programs
from .registry import register

# Programs that `prepare` copies at a time.
_PART = 16_384

SCHEMAS = ("statements-cpu", "statements-gpu")


@dataclass(frozen=True)
class StatementConfig(ModelConfig):
    """Input of the statement models: 164 columns of the statement and 10 of the operator, no device's row."""

    width: int = 174
    hardware: bool = False


class StatementModel(CostModel):
    """A cost model over the innermost statements of a program.

    The columns of statements differ in scale and spread by far, so each is shifted and scaled by the mean and
    the standard deviation of the training set: `prepare` fits them, and they are saved with the weights.

    Attributes:
        mean, std: (width,) of float32.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.register_buffer("mean", torch.zeros(config.width))
        self.register_buffer("std", torch.ones(config.width))

    def prepare(self, features: Tensor) -> None:
        count, mean = self._average(features, lambda rows: rows)
        if not count:
            return
        _, variance = self._average(features, lambda rows: (rows - mean).square())
        std = variance.sqrt()
        self.mean.copy_(mean)
        # A column that never changes here says nothing: it is left at zero, not divided by nothing.
        self.std.copy_(torch.where(std > 1e-6, std, torch.ones_like(std)))

    def _average(self, features: Tensor, of: Callable[[Tensor], Tensor]) -> tuple[int, Tensor]:
        """Return the number of statements, and the mean of `of` them, a part at a time: (width,) of float64."""
        count, total = 0, torch.zeros(self.config.width, dtype=torch.float64)
        for part in features.split(_PART):
            rows = part[row_mask(part)].double()
            count, total = count + len(rows), total + of(rows).sum(dim=0)
        return count, total / max(count, 1)

    def pack(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return packed statements (filled, width) in the training set's own units, and their mask (see `layers`)."""
        mask = row_mask(x)
        return (x[mask] - self.mean) / self.std, mask


@dataclass(frozen=True)
class TenSetMLPConfig(StatementConfig):
    """Sizes of `TenSetMLP`.

    Attributes:
        hidden: width of all layers.
        residuals: residual blocks after the sum.
    """

    hidden: int = 256
    residuals: int = 2


@register("tenset-mlp", TenSetMLPConfig, schemas=SCHEMAS, paper="TLP, section 2")
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
