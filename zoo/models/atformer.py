"""ATFormer and its ablations: attention over statements (papers: ATFormer, section 3.2, A.2 and A.5)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from .base import drop_padding
from .layers import EncoderLayer, SelfAttention, check_heads, mlp, sum_programs, unpack
from .registry import register, with_defaults
from .statements import SCHEMAS, StatementConfig, StatementModel


@dataclass(frozen=True)
class MHAConfig(StatementConfig):
    """Sizes of `MHA` (table 16).

    Attributes:
        hidden: width of the embedding and of the attention.
        attention_heads: of each attention layer.
        rows: slots of a program where padding is not masked: shorter programs are filled up with padding to
            as many, so that a score does not depend on how a batch was cut.
        mask: hides padding from the attention and leaves it out of the sum (A.2). Without it padding counts as
            statements with nothing in them.
    """

    hidden: int = 512
    attention_heads: int = 4
    rows: int = 10
    mask: bool = False

    def __post_init__(self) -> None:
        check_heads(self.hidden, self.attention_heads)


@dataclass(frozen=True)
class ATFormerConfig(MHAConfig):
    """Sizes of `ATFormer` (table 17).

    Attributes:
        layers: encoder layers.
        feedforward: width inside an encoder layer. The papers do not say; this is four times the hidden
            width, as in the Transformer.
    """

    layers: int = 2
    feedforward: int = 2048


@register("mha", MHAConfig, schemas=SCHEMAS, paper="ATFormer, A.2 and table 16")
class MHA(StatementModel):
    """ATFormer with nothing but attention between embedding and score; the base of the other three.

    Two layers embed a statement, self-attention mixes the statements of a program, one linear layer scores
    each, and the program's score is their sum.

    1,403,393 parameters for 174 columns, 5.35 MiB in float32: embedding 352,256, attention 1,050,624, score 513.
    """

    config: MHAConfig

    def __init__(self, config: MHAConfig) -> None:
        super().__init__(config)
        self.embedding = mlp(config.width, config.hidden, config.hidden, last_relu=True)
        self.blocks = nn.ModuleList(self._make_blocks())
        self.decoder = nn.Linear(config.hidden, 1)

    def _make_blocks(self) -> list[nn.Module]:
        return [SelfAttention(self.config.hidden, self.config.attention_heads)]

    def forward(self, x: Tensor) -> Tensor:
        rows, mask = self.pack(drop_padding(x)) if self.config.mask else self._slots(x)
        h = self.embedding(rows)
        for block in self.blocks:
            h = block(h, mask)
        return sum_programs(self.decoder(h), mask).squeeze(-1)

    def _slots(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return `pack` where padding counts: every slot is a statement, and those of padding hold zeros."""
        rows, mask = self.pack(functional.pad(x, (0, 0, 0, max(0, self.config.rows - x.shape[1]))))
        return unpack(rows, mask).flatten(0, 1), torch.ones_like(mask)


@register("atformer", ATFormerConfig, schemas=SCHEMAS, paper="ATFormer, section 3.2")
class ATFormer(MHA):
    """Two encoder layers between embedding and score (figure 3).

    6,657,537 parameters for 174 columns, 25.4 MiB in float32: embedding 352,256, encoder layers 3,152,384 each,
    score 513. Neither paper gives a size.
    """

    config: ATFormerConfig

    def _make_blocks(self) -> list[nn.Module]:
        c = self.config
        return [EncoderLayer(c.hidden, c.attention_heads, c.feedforward) for _ in range(c.layers)]


@register("atformer-1l", with_defaults(ATFormerConfig, layers=1), schemas=SCHEMAS, paper="ATFormer, A.2")
class ATFormer1L(ATFormer):
    """One encoder layer: 3,505,153 parameters, 13.4 MiB in float32."""


_MASKED = with_defaults(ATFormerConfig, mask=True)


@register("atformer-m", _MASKED, schemas=SCHEMAS, paper="ATFormer, A.2 and table 18")
class ATFormerM(ATFormer):
    """`ATFormer` with padding masked out; as many parameters."""
