"""Attention in products and softmax, and PyTorch's fused operators for it, which TVM lacks; see `decompose`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Attention by two products and a softmax; PyTorch's own decomposition looks at every score three times more.

    Rows that a mask covers wholly give zeros, as in PyTorch.
    """
    import torch

    if dropout_p > 0:
        return NotImplemented
    if enable_gqa and key.shape[-3] != query.shape[-3]:
        key, value = (_repeated_heads(x, query.shape[-3]) for x in (key, value))
    scores = (query * (scale or 1 / math.sqrt(query.shape[-1]))) @ key.transpose(-2, -1)
    least = torch.finfo(scores.dtype).min
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is None:
        return scores.softmax(-1) @ value
    if attn_mask.dtype != torch.bool:
        scores = scores + attn_mask
        attn_mask = attn_mask != -math.inf
    weights = torch.where(attn_mask, scores, least).softmax(-1)
    if not is_causal:  # where the first key of each row counts
        weights = torch.where(attn_mask, weights, 0.0)
    return weights @ value


def _repeated_heads(x: Tensor, heads: int) -> Tensor:
    """Each head as often as grouped queries need it."""
    *batch, groups, tokens, size = x.shape
    x = x.unsqueeze(-3).expand(*batch, groups, heads // groups, tokens, size)
    return x.reshape(*batch, heads, tokens, size)


def multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> Any:
    """The fast path of `torch.nn.MultiheadAttention`, where a graph holds it; its mask is true where no one looks."""
    from torch.nn import functional

    if need_weights:
        return NotImplemented
    heads = []
    for x, weight, bias in zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3), strict=True):
        heads.append(functional.linear(x, weight, bias).unflatten(-1, (num_head, -1)).transpose(1, 2))
    if mask is not None:
        mask = ~(mask.bool()[:, None, None] if mask_type == 1 else mask.bool())
    mixed = attention(*heads, attn_mask=mask).transpose(1, 2).flatten(2)
    return functional.linear(mixed, proj_weight, proj_bias), None


def encoder_layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """The fast path of `torch.nn.TransformerEncoderLayer`, where a graph holds it."""
    from torch.nn import functional

    def attend(x: Tensor) -> Tensor:
        weights = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        return multi_head_attention(x, x, x, embed_dim, num_heads, *weights, mask, False, True, mask_type)[0]

    def feed(x: Tensor) -> Tensor:
        hidden = functional.linear(x, ffn_weight_1, ffn_bias_1)
        hidden = functional.gelu(hidden) if use_gelu else hidden.relu()
        return functional.linear(hidden, ffn_weight_2, ffn_bias_2)

    def first(x: Tensor) -> Tensor:
        return functional.layer_norm(x, [embed_dim], norm_weight_1, norm_bias_1, eps)

    def second(x: Tensor) -> Tensor:
        return functional.layer_norm(x, [embed_dim], norm_weight_2, norm_bias_2, eps)

    if norm_first:
        src = src + attend(first(src))
        return src + feed(second(src))
    src = first(src + attend(src))
    return second(src + feed(src))
