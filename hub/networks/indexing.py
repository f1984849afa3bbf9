"""Rows by their index: PyTorch's operators as gathers and scatters of whole rows; see `decompose`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


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


def index(x: Tensor, indices: Sequence[Tensor | None]) -> Any:
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

    broadcast = torch.broadcast_tensors(*(index for index in indices if index is not None))
    number = torch.zeros_like(broadcast[0])
    for i, index in zip(where, broadcast, strict=True):
        number = number * x.shape[i] + torch.where(index < 0, index + x.shape[i], index)
    return number


def index_put(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Any:
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


def index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    shape = [1] * source.dim()
    shape[dim] = -1
    return x.scatter_add(dim, index.reshape(shape).expand(source.shape), source if alpha == 1 else source * alpha)


def select(x: Tensor, dim: int, index: int) -> Any:
    """TVM's reads before the tensor where the index counts from the end, and fails later where the dimension does."""
    if index >= 0 and dim >= 0:
        return NotImplemented
    return x.select(dim % x.dim(), index % x.shape[dim])


def windows(x: Tensor, dimension: int, size: int, step: int) -> Any:
    """`Tensor.unfold`: overlapping windows along a dimension, as a new last dimension."""
    import torch

    dimension %= max(1, x.dim())
    starts = torch.arange(0, x.shape[dimension] - size + 1, step)
    places = starts[:, None] + torch.arange(size)
    rows = x.index_select(dimension, places.reshape(-1)).unflatten(dimension, (len(starts), size))
    return rows.movedim(dimension + 1, -1)
