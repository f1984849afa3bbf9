"""PyTorch operators on images and volumes in others that TVM has, or has right; see `decompose`."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

AVERAGES = tuple(getattr(torch.ops.aten, f"avg_pool{dims}d").default for dims in (1, 2, 3))


def antialiased(kernel: Callable[[Tensor], Tensor], reach: int) -> Callable[..., Any]:
    """Return a resize by two products with matrices, one of rows and one of columns.

    Args:
        kernel: weight of a pixel by its distance, which is 0 from `reach` on.
    """

    def weights(old: int, new: int) -> Tensor:
        scale = old / new
        wide = max(1.0, scale)
        centres = (torch.arange(new) + 0.5) * scale
        places = torch.arange(old)
        first, last = ((centres + side * reach * wide + 0.5).to(torch.int64)[:, None] for side in (-1, 1))
        inside = (places >= first) & (places < last)
        shares = torch.where(inside, kernel((places + 0.5 - centres[:, None]).abs() / wide), 0.0)
        return shares / shares.sum(1, keepdim=True)

    def run(x: Tensor, output_size: Sequence[int], align_corners: bool, *_: Any) -> Any:
        if align_corners:
            return NotImplemented
        high, wide = (weights(old, new).to(x.dtype) for old, new in zip(x.shape[2:], output_size, strict=True))
        return high @ x @ wide.T

    return run


def triangle(distance: Tensor) -> Tensor:
    return (1 - distance).clamp(min=0)


def cubic(distance: Tensor) -> Tensor:
    """Return weights of Keys' cubic convolution with a = -1/2, which PyTorch takes where it smooths."""
    x = distance
    near, far = (1.5 * x - 2.5) * x * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2
    return torch.where(x < 1, near, torch.where(x < 2, far, 0.0))


def sampled_volume(x: Tensor, grid: Tensor, mode: int, padding: int, align_corners: bool) -> Tensor:
    """Take a volume at the places of a grid: of the corners around each, or of the nearest (`mode` 1).

    Outside it is zeros, its border (`padding` 1), or its mirror image (2).
    """
    sizes = x.shape[2:]

    def coordinate(c: Tensor, size: int) -> Tensor:
        c = (c + 1) / 2 * (size - 1) if align_corners else ((c + 1) * size - 1) / 2
        if padding == 2:
            low, span = (0.0, size - 1) if align_corners else (-0.5, size)
            c = (c - low).abs()
            turns = (c / max(span, 1)).floor()
            rest = c - turns * span
            c = torch.where(turns % 2 == 0, rest, span - rest) + low
        return c.clamp(0, size - 1) if padding else c

    # All corners in one gather, along three axes in front: eight gathers are a kernel each.
    sides = torch.arange(1 if mode == 1 else 2)
    number, weight = torch.zeros((), dtype=torch.int64), torch.ones((), dtype=x.dtype)
    for axis, size in enumerate(sizes):
        c = coordinate(grid[..., 2 - axis], size)  # the last axis of a grid counts columns first
        side = sides.reshape([-1 if i == axis else 1 for i in range(3)] + [1] * c.dim())
        near = (c.round() if mode == 1 else c.floor()) + side
        number = number * size + near.clamp(0, size - 1).to(torch.int64)
        weight = weight * ((near >= 0) & (near < size)) * (1 if mode == 1 else 1 - (c - near).abs())
    number, weight = (part.movedim(3, 0).flatten(4).flatten(1, 3).unsqueeze(1) for part in (number, weight))
    rows = number.flatten(2).expand(-1, x.shape[1], -1)
    taken = x.flatten(2).gather(2, rows).unflatten(2, number.shape[2:]) * weight
    return taken.sum(2).unflatten(2, grid.shape[1:4])


def pooled(pool: Any) -> Callable[..., Any]:
    """Give pools the stride that PyTorch takes from the kernel, and averages a divisor: TVM has neither."""

    def run(x: Tensor, kernel_size: Sequence[int], stride: Sequence[int] = (), *rest: Any) -> Any:
        if pool in AVERAGES and x.dim() == len(kernel_size) + 1:  # of an image alone
            return pool(x[None], kernel_size, stride or kernel_size, *rest)[0]
        *others, divisor = rest if len(rest) == 4 else (*rest, None)  # of an average of images and volumes
        if divisor is None:
            return NotImplemented if stride else pool(x, kernel_size, kernel_size, *others)
        around, to_end, _ = others
        widths, cut = [], []
        for size, border, kernel, step in zip(
            x.shape[-len(kernel_size) :], around, kernel_size, stride or kernel_size, strict=True
        ):
            cut.append(min(kernel, size + 2 * border))
            more = -(size + 2 * border - cut[-1]) % step if to_end else 0
            # A window that would begin behind the image and its first border is none.
            more -= step * (more + border >= kernel)
            widths = [border, border + more, *widths]
        windows = pool(functional.pad(x, widths), cut, stride or kernel_size)
        return windows * (math.prod(cut) / divisor)

    return run


def group_norm(
    x: Tensor, weight: Any, bias: Any, samples: int, channels: int, _pixels: int, groups: int, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise groups of channels; channels have their sums before groups have theirs: an image keeps its layout."""
    pixels = list(range(2, x.dim()))

    def average(each: Tensor) -> Tensor:
        each = each.mean(pixels, keepdim=True) if pixels else each
        groupwise = each.reshape(samples, groups, -1).mean(2, keepdim=True)
        return groupwise.expand(-1, -1, channels // groups).reshape(each.shape)

    result, mean, root = _normalised(x, weight, bias, average, epsilon)
    return result, mean.reshape(samples, groups, -1)[:, :, 0], root.reshape(samples, groups, -1)[:, :, 0]


def batch_norm(
    x: Tensor, weight: Any, bias: Any, _training: bool, _momentum: float, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise channels by the batch itself; instance norm, which PyTorch parts so, has images as further channels."""
    rows = [0, *range(2, x.dim())]
    result, mean, root = _normalised(x, weight, bias, lambda each: each.mean(rows, keepdim=True), epsilon)
    return result, mean.flatten(), root.flatten()


def _normalised(
    x: Tensor, weight: Any, bias: Any, average: Callable[[Tensor], Tensor], epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return an image normalised, then scaled and shifted by weight and bias; the mean; and the deviation's inverse.

    TVM subtracts the squares of two large numbers instead, which leaves little of a small deviation.
    """
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    mean = average(wide)
    apart = wide - mean
    root = (average(apart * apart) + epsilon).rsqrt()
    shape = (-1, *[1] * (x.dim() - 2))
    scale = root if weight is None else root * weight.to(wide.dtype).reshape(shape)
    shift = -mean * scale if bias is None else bias.to(wide.dtype).reshape(shape) - mean * scale
    return (wide * scale + shift).to(x.dtype), mean, root


def maximum_with_places(pool: Any) -> Callable[..., Any]:
    """Return the places of a pool's maxima in the image or volume as well, for which TVM gives the maxima again."""
    inside, alone = False, pooled(pool)

    def run(
        x: Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
        ceil_mode: bool = False,
    ) -> Any:
        nonlocal inside
        if inside:
            return alone(x, kernel_size, stride, padding, dilation, ceil_mode)
        inside = True
        try:
            values, _ = pool(x, kernel_size, stride or kernel_size, padding, dilation, ceil_mode)
        finally:
            inside = False
        dims, first = len(kernel_size), x.dim() - len(kernel_size)
        around, apart = ([*each] * dims if len(each) == 1 else each for each in (padding, dilation))
        windows, number, within = x, torch.zeros((), dtype=torch.int64), torch.ones((), dtype=torch.bool)
        for n, step in enumerate(stride or kernel_size):
            size, axis = x.shape[first + n], first + 2 * n
            at = torch.arange(values.shape[first + n])[:, None] * step + torch.arange(kernel_size[n]) * apart[n]
            at = at - around[n]
            windows = windows.index_select(axis, at.clamp(0, size - 1).flatten()).unflatten(axis, at.shape)
            number = number[..., None, None] * size + at
            within = within[..., None, None] & (at >= 0) & (at < size)
        bounds = torch.finfo(x.dtype) if x.dtype.is_floating_point else torch.iinfo(x.dtype)
        windows, number, within = (
            _last(one, dims) for one in (torch.where(within, windows, bounds.min), number, within)
        )
        best, first_inside = windows.argmax(-1, keepdim=True), within.int().argmax(-1, keepdim=True)
        # Where a window has no more than the padding's value, TVM's `argmax` gives any number.
        some = windows.amax(-1, keepdim=True) > bounds.min
        best = torch.where(some, best, first_inside)
        return values, number.expand(windows.shape).gather(-1, best).squeeze(-1)

    return run


def _last(windows: Tensor, dims: int) -> Tensor:
    """Put the elements of each window last: of pairs of axes, the window's number and the place in it, the second."""
    first = windows.dim() - 2 * dims
    axes = [*range(first), *range(first, windows.dim(), 2), *range(first + 1, windows.dim(), 2)]
    return windows.permute(axes).flatten(first + dims)


def adaptive_maximum(x: Tensor, output_size: Sequence[int]) -> Any:
    """Return the maxima of parts of an image or volume, and their places; of equal ones the first row's, as PyTorch."""
    dims = {i - len(output_size): _parts(x.shape[i - len(output_size)], n) for i, n in enumerate(output_size)}
    values, tops = x, x
    for dim, parts in dims.items():
        values = torch.cat([values.narrow(dim, *part).amax(dim, keepdim=True) for part in parts], dim)
    sizes = x.shape[-len(output_size) :]
    places = torch.arange(math.prod(sizes)).reshape(sizes).expand(x.shape)
    for dim, parts in reversed(dims.items()):
        best = [(part, tops.narrow(dim, *part).argmax(dim, keepdim=True)) for part in parts]
        tops, places = (
            torch.cat([each.narrow(dim, *part).gather(dim, own) for part, own in best], dim) for each in (tops, places)
        )
    return values, places


def _parts(size: int, count: int) -> list[tuple[int, int]]:
    """Return begin and length of each of the parts into which PyTorch cuts an axis."""
    begins = [i * size // count for i in range(count)]
    return [(begin, -(-(i + 1) * size // count) - begin) for i, begin in enumerate(begins)]


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
