"""PyTorch's side of the import: an exported program in operators that TVM translates, and translates rightly.

PyTorch's own decompositions come first. What follows here is for operators that TVM lacks, or computes otherwise than
PyTorch does: mixed data types, advanced indices with gaps, a maximum with its place (TVM sorts for it), attention.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor
    from torch.fx import Node


def decomposed(exported: Any) -> Any:
    """Decompose an exported program for TVM's importer.

    Args:
        exported: a `torch.export.ExportedProgram`; it stays as it is.

    Returns:
        A program of the same inputs and outputs, whose operators take tensors of one data type.
    """
    exported = exported.run_decompositions(_table())
    _promote_types(exported)
    exported.graph_module.graph.eliminate_dead_code()
    exported.graph_module.recompile()
    return exported


@cache
def _table() -> dict[Any, Callable[..., Any]]:
    """PyTorch's decompositions, for all that TVM lacks too, with ours for the operators named."""
    import torch
    from torch._decomp import decomposition_table

    from .converters import translated

    aten = torch.ops.aten
    table = torch.export.default_decompositions()
    has = translated()
    # Those of torch._refs end in the primitives of nvFuser, not in ATen's operators.
    lacking = {op: f for op, f in decomposition_table.items() if op.__name__ not in has and "_refs" not in f.__module__}
    table.update(lacking)
    table[aten.grid_sampler_2d.default] = decomposition_table[aten.grid_sampler_2d.default]
    table.update({
        aten.scaled_dot_product_attention.default: _attention,
        aten._transformer_encoder_layer_fwd.default: _encoder_layer,
        aten._native_multi_head_attention.default: _multi_head_attention,
        aten._embedding_bag.default: _embedding_bag,
        aten.index.Tensor: _index,
        aten.index_put.default: _index_put,
        aten.index_add.default: _index_add,
        aten.max.dim: _max_with_place,
        aten.min.dim: _min_with_place,
        aten.linalg_vector_norm.default: _vector_norm,
        aten.clamp.default: _clamp,
        aten.any.default: lambda x: x.ne(0).any(list(range(x.dim()))) if x.dim() else x.ne(0),
        aten.any.dim: lambda x, dim, keepdim=False: _any(x, [dim], keepdim),
        aten.any.dims: _any,
        aten.var_mean.correction: lambda x, dim=None, **options: (
            x.var(dim, **options), x.mean(dim, options.get("keepdim", False))
        ),
        aten.selu.default: lambda x: 1.0507009873554805 * aten.where(x > 0, x, 1.6732632423543772 * x.expm1()),
        aten.var.dim: lambda x, dim, unbiased=True, keepdim=False: x.var(dim, correction=+unbiased, keepdim=keepdim),
        aten.addmm.default: _sum_with_product,
        aten.baddbmm.default: _sum_with_product,
        aten.div.Tensor_mode: _rounded_quotient,
        aten.div.Scalar_mode: _rounded_quotient,
        aten.select.int: _select,
        # TVM's ConvertLayout fails at axes that count from the end.
        aten.squeeze.dims: lambda x, dim: x.squeeze([d % x.dim() for d in dim]) if min(dim) < 0 else NotImplemented,
        aten.unsqueeze.default: lambda x, dim: x.unsqueeze(dim + x.dim() + 1) if dim < 0 else NotImplemented,
        aten.upsample_nearest2d.vec: _nearest,
        aten._upsample_bilinear2d_aa.default: _antialiased,
        **{getattr(aten, f"avg_pool{n}d").default: _average(getattr(aten, f"avg_pool{n}d").default) for n in (1, 2, 3)},
        aten.adaptive_max_pool2d.default: _adaptive_maximum,
        aten.unfold.default: _windows,
        aten.erfc.default: lambda x: 1 - x.erf(),
        aten.hypot.default: lambda x, y: (x * x + y * y).sqrt(),
        aten.convolution.default: _convolution,
        aten._trilinear.default: _trilinear,
        aten.full_like.default: _full_like,
        aten._cdist_forward.default: _distances,
        **{getattr(aten, f"reflection_pad{n}d").default: _padding(_reflected) for n in (1, 2, 3)},
        **{getattr(aten, f"replication_pad{n}d").default: _padding(_replicated) for n in (1, 2, 3)},
    })  # fmt: skip
    return table


# Attention


def _attention(
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


def _multi_head_attention(
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
    mixed = _attention(*heads, attn_mask=mask).transpose(1, 2).flatten(2)
    return functional.linear(mixed, proj_weight, proj_bias), None


def _encoder_layer(
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
        return _multi_head_attention(x, x, x, embed_dim, num_heads, *weights, mask, False, True, mask_type)[0]

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


# Tables and indices


def _embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Any:
    """Sum, mean or maximum of bags, as a product with the matrix of which row is in which bag."""
    import torch

    starts = offsets[:-1] if include_last_offset else offsets
    rows = torch.nn.functional.embedding(indices, weight)
    places = torch.arange(indices.shape[0])
    inside = places[None] >= starts[:, None]
    ends = torch.cat([starts[1:], torch.full_like(starts[:1], indices.shape[0])])
    inside = inside & (places[None] < ends[:, None])
    if padding_idx >= 0:
        inside = inside & (indices != padding_idx)[None]
    counts = inside.sum(1)
    if mode == 2:
        tops = torch.where(inside[..., None], rows[None], -math.inf).amax(1)
        bags = torch.where((counts > 0)[:, None], tops, 0.0)
    else:
        shares = inside.to(rows.dtype)
        if per_sample_weights is not None:
            shares = shares * per_sample_weights[None]
        bags = shares @ rows
        if mode == 1:
            bags = bags / counts.clamp(min=1)[:, None].to(rows.dtype)
    return bags, torch.zeros_like(indices), counts, torch.zeros_like(starts)


def _index(x: Tensor, indices: Sequence[Tensor | None]) -> Any:
    """Advanced indexing as one gather of rows, by their number in the dimensions that are indexed."""
    where = _indexed(indices)
    if where is None:
        return NotImplemented
    number, rest = _row_number(x, indices, where), [i for i in range(x.dim()) if i not in where]
    rows = x.permute(where + rest).reshape(-1, *(x.shape[i] for i in rest))
    taken = rows.index_select(0, number.reshape(-1)).reshape(*number.shape, *(x.shape[i] for i in rest))
    if where != list(range(where[0], where[0] + len(where))):
        return taken  # with gaps between them, the indices' dimensions come first
    before = [number.dim() + i for i in range(where[0])]
    after = [i for i in range(number.dim(), taken.dim()) if i not in before]
    return taken.permute(before + list(range(number.dim())) + after)


def _indexed(indices: Sequence[Tensor | None]) -> list[int] | None:
    """The dimensions that are indexed; None for masks, which choose as many rows as they happen to have."""
    import torch

    if any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices):
        return None
    return [i for i, index in enumerate(indices) if index is not None]


def _row_number(x: Tensor, indices: Sequence[Tensor | None], where: Sequence[int]) -> Tensor:
    """The place of each element that indices name, counted through the dimensions `where`."""
    import torch

    found = torch.broadcast_tensors(*(index for index in indices if index is not None))
    number = torch.zeros_like(found[0])
    for i, index in zip(where, found, strict=True):
        number = number * x.shape[i] + torch.where(index < 0, index + x.shape[i], index)
    return number


def _index_put(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Any:
    """A scatter of rows; by a mask a choice of elements."""
    import torch

    where = _indexed(indices)
    if where is None:
        mask = indices[0]
        if len(indices) > 1 or mask is None or values.numel() > 1 or accumulate:
            return NotImplemented
        return torch.where(mask.reshape(*mask.shape, *[1] * (x.dim() - mask.dim())), values.reshape(()), x)
    if where != list(range(len(where))):
        return NotImplemented
    number, rest = _row_number(x, indices, where), x.shape[len(where) :]
    values = values.to(x.dtype).expand(*number.shape, *rest).reshape(number.numel(), -1)
    rows, places = x.reshape(-1, values.shape[1]), number.reshape(-1, 1).expand(values.shape)
    rows = rows.scatter_add(0, places, values) if accumulate else rows.scatter(0, places, values)
    return rows.reshape(x.shape)


def _index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    shape = [1] * source.dim()
    shape[dim] = -1
    return x.scatter_add(dim, index.reshape(shape).expand(source.shape), source if alpha == 1 else source * alpha)


def _select(x: Tensor, dim: int, index: int) -> Any:
    """TVM's reads before the tensor where the index counts from the end."""
    return x.select(dim, index + x.shape[dim]) if index < 0 else NotImplemented


# Reductions and elements


def _max_with_place(x: Tensor, dim: int, keepdim: bool = False) -> Any:
    return x.amax(dim, keepdim), x.argmax(dim, keepdim)


def _min_with_place(x: Tensor, dim: int, keepdim: bool = False) -> Any:
    return x.amin(dim, keepdim), x.argmin(dim, keepdim)


def _any(x: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    import torch

    if x.dtype == torch.bool:
        return NotImplemented
    return x.ne(0).any(dim, keepdim)


def _vector_norm(x: Tensor, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    dims = list(range(x.dim())) if dim is None else dim
    if dtype is not None:
        x = x.to(dtype)
    if ord == 2:
        return (x * x).sum(dims, keepdim).sqrt()
    if ord == 1:
        return x.abs().sum(dims, keepdim)
    if ord == 0:
        return x.ne(0).sum(dims, keepdim).to(x.dtype)
    return NotImplemented


def _clamp(x: Tensor, min: Any = None, max: Any = None) -> Any:
    """Of integers: TVM's takes infinity for a bound that is not there."""
    import torch

    if x.dtype.is_floating_point:
        return NotImplemented
    dtype = torch.result_type(x, min if min is not None else max)
    for bound, choose in ((min, torch.maximum), (max, torch.minimum)):
        if bound is not None:
            x = choose(x.to(dtype), torch.scalar_tensor(bound, dtype=dtype))
    return x


def _sum_with_product(bias: Tensor, x: Tensor, y: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    """Of other types than float32, in which TVM's computes; factors of one are left out."""
    import torch

    if x.dtype == torch.float32:
        return NotImplemented
    product = x @ y if alpha == 1 else alpha * (x @ y)
    return product + (bias if beta == 1 else beta * bias)


def _rounded_quotient(x: Tensor, y: Tensor | float, *, rounding_mode: str | None) -> Any:
    """By a number: TVM's takes it for an int32 or a float32."""
    import torch

    if isinstance(y, torch.Tensor):
        return NotImplemented
    return x.div(torch.scalar_tensor(y, dtype=torch.result_type(x, y)), rounding_mode=rounding_mode)


def _full_like(x: Tensor, fill_value: float, *, dtype: Any = None, **_: Any) -> Tensor:
    """Of the shape alone, so that it is a constant; TVM's takes the data type of `x`."""
    import torch

    return torch.full(x.shape, fill_value, dtype=dtype or x.dtype)


def _distances(x: Tensor, y: Tensor, p: float, compute_mode: int | None) -> Any:
    difference = (x.unsqueeze(-2) - y.unsqueeze(-3)).abs()
    if p == 2:
        return (difference * difference).sum(-1).sqrt()
    if p == math.inf:
        return difference.amax(-1)
    return (difference**p).sum(-1) ** (1 / p) if p else NotImplemented


def _trilinear(
    a: Tensor, b: Tensor, c: Tensor, expand1: Any, expand2: Any, expand3: Any, sumdim: Any, unroll_dim: int = 1
) -> Tensor:
    for dim in sorted(expand1):
        a = a.unsqueeze(dim)
    for dim in sorted(expand2):
        b = b.unsqueeze(dim)
    for dim in sorted(expand3):
        c = c.unsqueeze(dim)
    return (a * b * c).sum(list(sumdim))


def _padding(places: Callable[[Tensor, int], Tensor]) -> Callable[..., Tensor]:
    """Padding of the last dimensions by rows of the image itself."""

    def pad(x: Tensor, padding: Sequence[int]) -> Tensor:
        import torch

        for number in range(len(padding) // 2):
            dim, (before, after) = x.dim() - 1 - number, padding[2 * number : 2 * number + 2]
            if before or after:
                last = x.shape[dim] - 1
                x = x.index_select(dim, places(torch.arange(-before, last + 1 + after), last))
        return x

    return pad


def _reflected(place: Tensor, last: int) -> Tensor:
    return last - (last - place.abs()).abs()


def _replicated(place: Tensor, last: int) -> Tensor:
    return place.clamp(0, last)


# Images


def _nearest(x: Tensor, output_size: Sequence[int] | None, scale_factors: Sequence[float] | None) -> Any:
    """TVM's rounds to another pixel, except where each pixel is repeated."""
    import torch
    from torch._decomp import decomposition_table

    parts = decomposition_table[torch.ops.aten.upsample_nearest2d.vec]
    sizes = output_size or [int(size * scale) for size, scale in zip(x.shape[2:], scale_factors or (), strict=True)]
    whole = all(new % old == 0 for new, old in zip(sizes, x.shape[2:], strict=True))
    return NotImplemented if whole else parts(x, output_size, scale_factors)


def _antialiased(x: Tensor, output_size: Sequence[int], align_corners: bool, *_: Any) -> Any:
    """Two products with matrices of triangles, one of rows and one of columns."""
    import torch

    if align_corners:
        return NotImplemented

    def weights(old: int, new: int) -> Tensor:
        scale = old / new
        centres = (torch.arange(new) + 0.5) * scale
        distance = (torch.arange(old) + 0.5 - centres[:, None]).abs()
        triangles = (1 - distance / max(1.0, scale)).clamp(min=0)
        return (triangles / triangles.sum(1, keepdim=True)).to(x.dtype)

    high, wide = (weights(old, new) for old, new in zip(x.shape[2:], output_size, strict=True))
    return high @ x @ wide.T


def _average(pool: Any) -> Callable[..., Any]:
    """TVM's needs the stride that PyTorch takes from the kernel."""

    def averaged(x: Tensor, kernel_size: Sequence[int], stride: Sequence[int] = (), *rest: Any, **named: Any) -> Any:
        return NotImplemented if stride else pool(x, kernel_size, kernel_size, *rest, **named)

    return averaged


def _adaptive_maximum(x: Tensor, output_size: Sequence[int]) -> Any:
    import torch

    for dim, parts in zip((-2, -1), output_size, strict=True):
        size = x.shape[dim]
        bounds = [(i * size // parts, -(-(i + 1) * size // parts)) for i in range(parts)]
        x = torch.cat([x.narrow(dim, low, high - low).amax(dim, keepdim=True) for low, high in bounds], dim)
    return x, torch.zeros_like(x, dtype=torch.int64)


def _windows(x: Tensor, dimension: int, size: int, step: int) -> Any:
    """`Tensor.unfold`: overlapping windows along a dimension, as a new last dimension."""
    import torch

    dimension %= max(1, x.dim())
    starts = torch.arange(0, x.shape[dimension] - size + 1, step)
    places = starts[:, None] + torch.arange(size)
    rows = x.index_select(dimension, places.reshape(-1)).unflatten(dimension, (len(starts), size))
    return rows.movedim(dimension + 1, -1)


def _convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    """Of volumes, transposed, which TVM lacks: a convolution of the volume with zeros between its elements."""
    from torch.nn import functional

    if not transposed or x.dim() != 5:
        return NotImplemented
    widths: list[int] = []
    for n in range(3):
        dim, step, size = 2 + n, stride[n], x.shape[2 + n]
        if step > 1:
            x = functional.pad(x.unsqueeze(dim + 1), [0, 0] * (4 - dim) + [0, step - 1])
            x = x.flatten(dim, dim + 1).narrow(dim, 0, (size - 1) * step + 1)
        edge = dilation[n] * (weight.shape[dim] - 1) - padding[n]
        widths = [edge, edge + output_padding[n], *widths]
    kernel = weight.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1).flip(2, 3, 4)
    return functional.conv3d(functional.pad(x, widths), kernel, bias, dilation=dilation, groups=groups)


# Data types

# Reductions and scans that compute in the data type of their result.
_ACCUMULATING = ("cumsum", "cumprod", "prod", "mean")


def _promote_types(exported: Any) -> None:
    """Cast what elementwise operators take to the type that they compute in, as PyTorch does by itself.

    TVM's importer casts a number to the type of its tensor, so that half of an integer is zero.
    """
    import torch

    graph = exported.graph_module.graph
    for node in list(graph.nodes):
        dtype = _computed_in(node) if node.op == "call_function" else None
        if dtype is None:
            continue
        for source in node.all_input_nodes:
            value = source.meta.get("val")
            if not isinstance(value, torch.Tensor) or value.dtype == dtype or _is_condition(node, source):
                continue
            with graph.inserting_before(node):
                cast = graph.call_function(torch.ops.aten._to_copy.default, (source,), {"dtype": dtype})
            cast.meta = {**source.meta, "val": value.to(dtype)}
            node.replace_input_with(source, cast)


def _computed_in(node: Node) -> Any:
    """The data type in which an operator computes, or None where it is no matter of types."""
    import torch

    target, value = node.target, node.meta.get("val")
    if not isinstance(target, torch._ops.OpOverload) or not isinstance(value, torch.Tensor):
        return None
    name = target.overloadpacket.__name__
    if name == "_to_copy" or not (torch.Tag.pointwise in target.tags or name in _ACCUMULATING):
        return None
    if name == "where" or value.dtype != torch.bool:
        return value.dtype
    operands: list[Any] = [a.meta["val"] if isinstance(a, torch.fx.Node) else a for a in node.args]
    if name.startswith("logical_") or len(operands) != 2:
        return None
    first, second = operands
    return torch.result_type(first, second)


def _is_condition(node: Node, source: Node) -> bool:
    """Whether a bool operand says where, rather than being computed with."""
    name = getattr(node.target, "__name__", "").split(".")[0]
    return (name == "where" and node.args[0] is source) or (name == "masked_fill" and node.args[1] is source)
