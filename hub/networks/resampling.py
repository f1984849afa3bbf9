"""Images by other sizes: padding, pooling, interpolation, transposed convolutions of volumes; see `decompose`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def nearest(x: Tensor, output_size: Sequence[int] | None, scale_factors: Sequence[float] | None) -> Any:
    """TVM's rounds to another pixel, except where each pixel is repeated."""
    import torch
    from torch._decomp import decomposition_table

    parts = decomposition_table[torch.ops.aten.upsample_nearest2d.vec]
    sizes = output_size or [int(size * scale) for size, scale in zip(x.shape[2:], scale_factors or (), strict=True)]
    whole = all(new % old == 0 for new, old in zip(sizes, x.shape[2:], strict=True))
    return NotImplemented if whole else parts(x, output_size, scale_factors)


def antialiased(x: Tensor, output_size: Sequence[int], align_corners: bool, *_: Any) -> Any:
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


def average(pool: Any) -> Callable[..., Any]:
    """TVM's needs the stride that PyTorch takes from the kernel, and has no divisor of its own."""

    def averaged(
        x: Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] | int = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:
        if divisor_override is not None and not ceil_mode:
            return pool(x, kernel_size, stride or kernel_size, padding) * (math.prod(kernel_size) / divisor_override)
        return NotImplemented if stride else pool(x, kernel_size, kernel_size, padding, ceil_mode, count_include_pad)

    return averaged


def maximum(pool: Any) -> Callable[..., Any]:
    """TVM's needs the stride that PyTorch takes from the kernel."""

    def largest(x: Tensor, kernel_size: Sequence[int], stride: Sequence[int] = (), *rest: Any) -> Any:
        return NotImplemented if stride else pool(x, kernel_size, kernel_size, *rest)

    return largest


def adaptive_maximum(x: Tensor, output_size: Sequence[int]) -> Any:
    import torch

    for dim, parts in zip((-2, -1), output_size, strict=True):
        size = x.shape[dim]
        bounds = [(i * size // parts, -(-(i + 1) * size // parts)) for i in range(parts)]
        x = torch.cat([x.narrow(dim, low, high - low).amax(dim, keepdim=True) for low, high in bounds], dim)
    return x, torch.zeros_like(x, dtype=torch.int64)


def convolution(
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
    """Transpose a convolution of volumes, which TVM lacks: convolve the volume with zeros between its elements."""
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


def padding(places: Callable[[Tensor, int], Tensor]) -> Callable[..., Tensor]:
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


def reflected(position: Tensor, last: int) -> Tensor:
    return last - (last - position.abs()).abs()


def replicated(position: Tensor, last: int) -> Tensor:
    return position.clamp(0, last)
