"""TLP over schedule primitives with its two backbones, self-attention and LSTM, and MTL-TLP.

Paper: TLP, sections 4.4, 5.2, 6.1.1 and 6.1.3.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .base import CostModel, ModelConfig, drop_padding, hardware_first, row_mask
from .layers import Residual, SelfAttention, check_heads, mlp, sum_programs, unpack
from .registry import register, with_defaults

SCHEMAS = ("tlp-cpu", "tlp-gpu", "tcl-cpu", "tcl-gpu")


@dataclass(frozen=True)
class PrimitiveConfig(ModelConfig):
    """Sizes of what TLP and its LSTM variant share; the paper's where it names one (section 6.1.3).

    Attributes:
        hardware: TLP has no row for the device; with one (a `tcl-*` schema) it reads it like a primitive.
        hidden: width that the columns are raised to, in three layers of a quarter, a half and all of it. The
            paper names the 256 and "shallow linear layers".
        residuals: residual blocks after the primitives have seen each other.
        heads: outputs, one a device, each of its own linear layers; the first is the target's.
    """

    hardware: bool = False
    hidden: int = 256
    residuals: int = 2
    heads: int = 1


class PrimitiveModel(CostModel):
    """TLP's frame, figure 7: linear layers raise each primitive to `hidden` columns, a mixer lets primitives
    see each other, residual blocks follow, and linear layers and a sum over the primitives make the score.
    """

    config: PrimitiveConfig

    def __init__(self, config: PrimitiveConfig, mixer: nn.Module) -> None:
        """`mixer` maps packed rows (filled, hidden) and their mask to the same shape (see `layers`)."""
        super().__init__(config)
        c, half, quarter = config, max(1, config.hidden // 2), max(1, config.hidden // 4)
        self.encoder = mlp(c.width, quarter, half, c.hidden, last_relu=True)
        self.mixer = mixer
        self.residuals = nn.Sequential(*(Residual(c.hidden) for _ in range(c.residuals)))
        self.decoder = nn.ModuleList(mlp(c.hidden, half, quarter, 1) for _ in range(c.heads))

    def forward(self, x: Tensor) -> Tensor:
        h, mask = self._trunk(x)
        return sum_programs(self.decoder[0](h), mask).squeeze(-1)

    def forward_heads(self, x: Tensor) -> Tensor:
        h, mask = self._trunk(x)
        return torch.cat([sum_programs(head(h), mask) for head in self.decoder], dim=1)

    def _trunk(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the trunk that the heads share: packed rows (filled, hidden), and their mask."""
        x = drop_padding(hardware_first(x) if self.config.hardware else x)
        mask = row_mask(x)
        h = self.encoder(x[mask])
        return self.residuals(h + self.mixer(h, mask)), mask


@dataclass(frozen=True)
class TLPConfig(PrimitiveConfig):
    """Sizes of `TLP`.

    Attributes:
        attention_heads: of the one attention layer (section 6.1.3).
    """

    attention_heads: int = 8

    def __post_init__(self) -> None:
        check_heads(self.hidden, self.attention_heads)


@register("tlp", TLPConfig, schemas=SCHEMAS, paper="TLP, section 4.4")
class TLP(PrimitiveModel):
    """TLP: one self-attention layer lets primitives see each other.

    Padding is neither attended to nor summed. As in the paper nothing tells the position of a primitive.

    478,785 parameters for 22 columns: raising 42,816, attention 263,168, residual blocks 131,584, head 41,217;
    1.83 MiB in float32. TCL's table 3 gives TLP 1.32 MB. The difference is 0.50 MiB, the size of the two
    residual blocks: without them these layers are 347,201 parameters, 1.32 MiB. The paper finds the blocks
    worth having, so they stay.
    """

    config: TLPConfig

    def __init__(self, config: TLPConfig) -> None:
        super().__init__(config, SelfAttention(config.hidden, config.attention_heads))


@register("mtl-tlp", with_defaults(TLPConfig, heads=2), schemas=SCHEMAS, paper="TLP, section 5.2")
class MTLTLP(TLP):
    """Multi-task TLP, figure 8: one trunk for all devices, and a head each; the paper does best with 3 (table 6).

    `forward_heads` gives all scores for training, where a program counts for the heads whose device measured
    it; `forward` those of head 0, the target's. A head has 41,217 parameters.
    """


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
