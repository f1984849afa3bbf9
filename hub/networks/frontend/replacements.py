"""PyTorch operators in others that TVM has, or has right: attention, rows by index; see `decompose`."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table


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
    """Compute attention by two products and a softmax; PyTorch's decomposition looks at every score three times more.

    A mask is added to scores, so that all can be one function. Rows that it covers wholly give zeros, as in PyTorch.
    """
    if dropout_p > 0:
        return NotImplemented
    if enable_gqa and key.shape[-3] != query.shape[-3]:
        key, value = (_repeated_heads(x, query.shape[-3]) for x in (key, value))
    scores = (query * (scale or 1 / math.sqrt(query.shape[-1]))) @ key.transpose(-2, -1)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is None:
        return scores.softmax(-1) @ value
    if attn_mask.dtype == torch.bool:
        counts, attn_mask = attn_mask, torch.where(attn_mask, 0.0, -math.inf).to(scores.dtype)
    else:
        counts = attn_mask != -math.inf
    context = (scores + attn_mask).softmax(-1) @ value
    # Of a causal mask, the first key of each row counts.
    return context if is_causal else torch.where(counts.any(-1, keepdim=True), context, 0.0)


def _repeated_heads(x: Tensor, heads: int) -> Tensor:
    """Repeat each head as often as grouped queries need it."""
    *batch, groups, tokens, size = x.shape
    x = x.unsqueeze(-3).expand(*batch, groups, heads // groups, tokens, size)
    return x.reshape(*batch, heads, tokens, size)


# Rows by their index


def embedding_bag(
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
    """Return sum, mean or maximum of bags, as a product with the matrix of which row is in which bag."""
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


def index(x: Tensor, indices: Sequence[Tensor | None]) -> Any:
    """Index as one gather of rows, by their number in the dimensions that are indexed."""
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
    """Return the dimensions that are indexed; None for masks, which choose as many rows as they happen to have."""
    if any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices):
        return None
    return [i for i, index in enumerate(indices) if index is not None]


def _row_number(x: Tensor, indices: Sequence[Tensor | None], where: Sequence[int]) -> Tensor:
    """Return the place of each element that indices name, counted through the dimensions `where`."""
    broadcast = torch.broadcast_tensors(*(index for index in indices if index is not None))
    number = torch.zeros_like(broadcast[0])
    for i, index in zip(where, broadcast, strict=True):
        number = number * x.shape[i] + torch.where(index < 0, index + x.shape[i], index)
    return number


def index_put(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Any:
    """Put rows by a scatter; by a mask as a choice of elements, unless each has a value of its own."""
    where = _indexed(indices)
    if where is None:
        (first, mask), *others = ((i, index) for i, index in enumerate(indices) if index is not None)
        after = x.dim() - first - mask.dim()
        if others or accumulate or (values.numel() > 1 and values.dim() > after):
            return NotImplemented
        values = values.reshape(()) if values.numel() == 1 else values
        return torch.where(mask.reshape(*mask.shape, *[1] * after), values.to(x.dtype), x)
    order = where + [i for i in range(x.dim()) if i not in where]
    number, turned = _row_number(x, indices, where), x.permute(order)
    rest, new = turned.shape[len(where) :], list(range(number.dim()))
    # With gaps between them, the indices' dimensions come first in the values; else they stand where they were.
    first = where[0] if where == list(range(where[0], where[0] + len(where))) else 0
    values = values.to(x.dtype).expand(*rest[:first], *number.shape, *rest[first:])
    values = values.movedim([first + i for i in new], new).reshape(number.numel(), -1)
    rows, places = turned.reshape(-1, values.shape[1]), number.reshape(-1, 1).expand(values.shape)
    rows = rows.scatter_add(0, places, values) if accumulate else rows.scatter(0, places, values)
    return rows.reshape(turned.shape).permute([order.index(i) for i in range(x.dim())])


def masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """Put the elements of `source` one after the other where the mask says, as texts take the features of images."""
    x, mask = torch.broadcast_tensors(x, mask)
    number = (mask.reshape(-1).to(torch.int64).cumsum(0) - 1).clamp(0, source.numel() - 1)
    return torch.where(mask, source.reshape(-1).index_select(0, number).reshape(x.shape), x)


def strided(x: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None) -> Any:
    """Look at a tensor's elements by strides of its memory, as overlapping windows do."""
    start = 0 if storage_offset is None else storage_offset - int(x.storage_offset())
    contiguous = [math.prod(size[i + 1 :]) for i in range(len(size))]
    memory = x.permute(sorted(range(x.dim()), key=lambda i: -x.stride(i)))
    if not memory.is_contiguous() or (x.is_contiguous() and contiguous == [*stride] and math.prod(size) == x.numel()):
        return NotImplemented
    number = torch.full((), start, dtype=torch.int64)
    for count, step in zip(size, stride, strict=True):
        number = number.unsqueeze(-1) + torch.arange(count) * step
    return memory.reshape(-1).index_select(0, number.reshape(-1)).reshape(*size)


def select(x: Tensor, dim: int, index: int) -> Any:
    """Count index and dimension from the front: from the end TVM reads before the tensor, or fails later."""
    if not isinstance(index, int) or (index >= 0 and dim >= 0):  # of a value that is computed TVM has no translation
        return NotImplemented
    return x.select(dim % x.dim(), index % x.shape[dim])


def windows(x: Tensor, dimension: int, size: int, step: int) -> Any:
    """`Tensor.unfold`: overlapping windows along a dimension, as a new last dimension."""
    dimension %= max(1, x.dim())
    starts = torch.arange(0, x.shape[dimension] - size + 1, step)
    places = starts[:, None] + torch.arange(size)
    rows = x.index_select(dimension, places.reshape(-1)).unflatten(dimension, (len(starts), size))
    return rows.movedim(dimension + 1, -1)


def overlapped(x: Tensor, sizes: list[int], dimension: int, size: int, step: int) -> Any:
    """Add up windows where they overlap; PyTorch writes out the sums of windows that are the same for all channels."""
    shape = [*sizes, size]
    if sizes:
        shape[dimension] = (sizes[dimension] - size) // step + 1
    repeated = list(x.shape) != shape and x.dim() == len(shape)
    if repeated and all(old in (1, new) for old, new in zip(x.shape, shape, strict=True)):
        x = x.expand(shape)
    return decomposition_table[torch.ops.aten.unfold_backward.default](x, sizes, dimension, size, step)


# Along a dimension


def rolled(x: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    """Put the last elements before the first by slices, which become part of other kernels: a gather does not."""
    if not dims:
        return rolled(x.reshape(-1), shifts, [0]).reshape(x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        if start := -shift % max(1, x.shape[dim]):
            x = torch.cat([x.narrow(dim, start, x.shape[dim] - start), x.narrow(dim, 0, start)], dim)
    return x


def running(combine: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, int], Tensor]:
    """Return what combines each element with all before it along a dimension, in as many steps as its size has bits."""

    def run(x: Tensor, dim: int) -> Tensor:
        step, size = 1, x.shape[dim] if x.dim() else 1
        while step < size:
            rest = combine(x.narrow(dim, step, size - step), x.narrow(dim, 0, size - step))
            x, step = torch.cat([x.narrow(dim, 0, step), rest], dim), 2 * step
        return x

    return run


def log_add_exp(x: Tensor, y: Tensor) -> Tensor:
    """Return log(exp(x) + exp(y)), also of infinities, where TVM's takes the logarithm of an integer."""
    rest = torch.where(x == y, 0.0, (x - y).abs())
    return torch.maximum(x, y) + (-rest).exp().log1p()


def running_extreme(combine: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, int], Any]:
    """Return `cummax` or `cummin`: the values, and the last place of each."""

    def run(x: Tensor, dim: int) -> Any:
        values = running(combine)(x, dim)
        shape = [size if i == dim % max(1, x.dim()) else 1 for i, size in enumerate(x.shape)]
        places = torch.arange(x.shape[dim] if x.dim() else 1).reshape(shape)
        return values, running(torch.maximum)(torch.where(x == values, places, 0), dim)

    return run


def kth_value(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    if not x.dim():
        return NotImplemented
    chosen = tuple(part.narrow(dim, k - 1, 1) for part in x.sort(dim))
    return chosen if keepdim else tuple(part.squeeze(dim) for part in chosen)


def median_of_numbers(x: Tensor, dim: int = -1, keepdim: bool = False) -> Any:
    """Return the lower median along a dimension of what is a number, and its place; `nanmedian`."""
    if not x.dim() or not x.dtype.is_floating_point:
        return NotImplemented
    ordered, places = torch.where(x.isnan(), math.inf, x).sort(dim)
    count = (~x.isnan()).sum(dim, keepdim=True)
    number = ((count - 1) // 2).clamp(min=0)
    values = torch.where(count > 0, ordered.gather(dim, number), math.nan)
    chosen = values, places.gather(dim, number)
    return chosen if keepdim else tuple(part.squeeze(dim) for part in chosen)


def extreme_of_numbers(combine: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Return `fmax` or `fmin`: of a number and NaN, the number."""
    return lambda x, y: torch.where(x.isnan(), y, torch.where(y.isnan(), x, combine(x, y)))


def search_sorted(
    borders: Tensor,
    x: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Any:
    """Count the borders below each value: there are few, and TVM searches none."""
    if sorter is not None:
        borders = borders.gather(-1, sorter)
    if borders.dim() > 1:
        borders = borders.unsqueeze(-2)
    right = right or side == "right"
    below = borders <= x.unsqueeze(-1) if right else borders < x.unsqueeze(-1)
    return below.sum(-1).to(torch.int32 if out_int32 else torch.int64)


def histogram(x: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    """Count elements by intervals of one width; bounds that are equal are those of the elements, in PyTorch."""
    if min == max:
        return NotImplemented
    x = x.reshape(-1, 1)
    number = ((x - min) / (max - min) * bins).floor().clamp(max=bins - 1)
    return ((number == torch.arange(bins)) & (x >= min) & (x <= max)).sum(0).to(x.dtype)


def grouped_product(
    x: Tensor, weights: Tensor, offs: Tensor | None = None, bias: Tensor | None = None, out_dtype: Any = None
) -> Any:
    """Multiply rows, sorted by their expert, by the weights of their experts, which `offs` says where they end.

    Few rows take their own weights; many are multiplied by all, with zeros for those of other experts, as one product.
    """
    if x.dim() != 2 or weights.dim() != 3 or offs is None or bias is not None or out_dtype is not None:
        return NotImplemented
    experts, size, outputs = weights.shape
    number = (torch.arange(len(x))[:, None] >= offs).sum(1)
    if len(x) <= experts:
        return (x.unsqueeze(1) @ weights.index_select(0, number.clamp(max=experts - 1))).squeeze(1)
    own = (number[:, None] == torch.arange(experts)).to(x.dtype)
    return (own.unsqueeze(2) * x.unsqueeze(1)).reshape(-1, experts * size) @ weights.reshape(-1, outputs)


def shifted(left: bool) -> Callable[[Tensor, int], Tensor]:
    """Return the shift of integers by a number of bits, as a product or a rounded quotient."""

    def run(x: Tensor, bits: int) -> Tensor:
        if left:
            return x * 2**bits
        if bits >= torch.iinfo(x.dtype).bits - 1 and x.dtype != torch.uint8:  # the divisor would be negative
            return torch.where(x < 0, -1, 0).to(x.dtype)
        return x.div(2**bits, rounding_mode="floor").to(x.dtype)

    return run


# Elementwise


def whole_power(x: Tensor | float, exponent: Tensor | float) -> Any:
    """Return a power of integers by way of float64, exact up to 2 ** 53."""
    dtype = torch.result_type(x, exponent)
    if dtype.is_floating_point or dtype.is_complex:
        return NotImplemented
    numbers = (each if isinstance(each, Tensor) else torch.full((), each) for each in (x, exponent))
    base, power = (each.to(torch.float64) for each in numbers)
    return (base**power).round().to(dtype)


def fake_quantized(x: Tensor, scale: Tensor | float, zero_point: Tensor | int, *rest: Any) -> Any:
    """Round to whole multiples of a scale within bounds, the last two arguments; unless a third one is zero."""
    *enabled, low, high = rest
    scale = scale if isinstance(scale, Tensor) else torch.scalar_tensor(scale)
    whole = (x * (1 / scale) + zero_point).round()
    rounded = (whole.clamp(low, high) - zero_point) * scale
    inside = (whole >= low) & (whole <= high)
    return torch.where(enabled[0] != 0, rounded, x) if enabled else rounded, inside


def fake_quantized_channels(x: Tensor, scale: Tensor, zero_point: Tensor, axis: int, low: int, high: int) -> Any:
    shape = [size if i == axis % x.dim() else 1 for i, size in enumerate(x.shape)]
    return fake_quantized(x, scale.reshape(shape), zero_point.reshape(shape), low, high)


# Quantised programs


def quantised() -> dict[Any, Callable[..., Any]]:
    """Return what PyTorch's operators of quantised programs compute, on real numbers.

    Most are PyTorch's own definitions. Those that read a number of a tensor, which a compiled network cannot, are not.
    """
    from torch.ao.quantization.fx import _decomposed as pytorch  # registers the operators

    operators = torch.ops.quantized_decomposed
    plain = (
        *("quantize_per_tensor", "dequantize_per_tensor", "quantize_per_channel", "dequantize_per_channel"),
        *("choose_qparams_per_token", "choose_qparams_per_token_asymmetric", "quantize_per_token"),
        *("dequantize_per_token", "dequantize_per_channel_group"),
    )
    return {getattr(operators, name).default: getattr(pytorch, name) for name in plain} | {
        **dict.fromkeys((operators.quantize_per_tensor.tensor, operators.quantize_per_tensor.tensor2), _quantize),
        **dict.fromkeys((operators.dequantize_per_tensor.tensor, operators.dequantize_per_tensor.tensor2), _dequantize),
        operators.quantize_per_channel_group.default: _quantize_groups,
        operators.convert_element_type.no_fuse: lambda x, dtype: x.to(dtype),
        operators.choose_qparams.tensor: _quantisation,
        operators.choose_qparams_symmetric.tensor: _symmetric_quantisation,
    }


def _quantize(x: Tensor, scale: Tensor, zero_point: Tensor, low: Any, high: Any, dtype: torch.dtype) -> Tensor:
    inverse = (1 / scale.reshape(()).to(torch.float64)).to(torch.float32)
    return ((x.to(torch.float32) * inverse).round() + zero_point.reshape(())).clamp(low, high).to(dtype)


def _dequantize(x: Tensor, scale: Tensor, zero_point: Tensor, *_: Any, out_dtype: torch.dtype | None = None) -> Tensor:
    dtype = out_dtype or torch.float32
    return (x.to(dtype) - zero_point.reshape(())) * scale.reshape(()).to(dtype)


def _quantize_groups(
    x: Tensor, scales: Tensor, zero_points: Tensor, low: int, high: int, dtype: torch.dtype, *_: Any
) -> Tensor:
    whole = (x.reshape(scales.numel(), -1) * (1 / scales.reshape(-1, 1)) + zero_points.reshape(-1, 1)).round()
    return whole.clamp(low, high).to(dtype).reshape(x.shape)


def _quantisation(x: Tensor, low: int, high: int, least: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return scale and zero point for the values of a tensor, and for zero."""
    smallest, largest = x.amin().clamp(max=0), x.amax().clamp(min=0)
    scale = ((largest - smallest) / float(high - low)).clamp(min=least)
    zero_point = (low - (smallest / scale).round()).clamp(low, high)
    return scale.reshape(1).to(torch.float64), zero_point.reshape(1).to(torch.int64)


def _symmetric_quantisation(x: Tensor, low: int, high: int, least: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    scale = (x.abs().amax() / (float(high - low) / 2)).clamp(min=least)
    zero_point = torch.full((1,), 128 if dtype == torch.uint8 else 0)
    return scale.reshape(1).to(torch.float64), zero_point
