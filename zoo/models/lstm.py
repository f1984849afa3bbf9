"""LSTM over schedule primitives: TLP with the other of its two backbones (papers: TLP, sections 4.4 and 6.1.1)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from .layers import unpack
from .registry import register
from .tlp import SCHEMAS, PrimitiveConfig, PrimitiveModel


@dataclass(frozen=True)
class LSTMConfig(PrimitiveConfig):
    """Sizes of `LSTM`.

    Attributes:
        layers: LSTM layers, one as TLP's attention.
    """

    layers: int = 1


@register("lstm", LSTMConfig, schemas=SCHEMAS, paper="TLP, section 4.4")
class LSTM(PrimitiveModel):
    """`TLP` whose primitives see those before them through an LSTM (TLP's table 3).

    Padding follows the primitives, so it reaches nothing. The device's row, where there is one, is read first.

    741,953 parameters for 22 columns, 2.83 MiB in float32, of them 526,336 in the LSTM; no paper gives a size.
    ATFormer's LSTM (table 15) reads statements and is 1024 wide: `create("lstm", width=174, hidden=1024)` has
    that width, and 11,854,081 parameters.
    """

    config: LSTMConfig

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__(config, _Recurrence(config.hidden, config.layers))


class _Recurrence(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, layers, batch_first=True)

    def forward(self, h: Tensor, mask: Tensor) -> Tensor:
        return self.lstm(unpack(h, mask))[0][mask]
