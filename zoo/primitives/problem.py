"""The sizes of an operator that is tuned, and how AutoTVM's arguments spell them."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Annotated, Any, Literal

import msgspec

from .language import TraceFormatError


@dataclass(frozen=True, slots=True)
class Conv:
    """A two-dimensional convolution, depthwise or not (sizes in elements).

    Attributes:
        n, c, h, w: the data's shape; k: output channels.
        kernel, stride, dilation: (height, width); padding: top, left, bottom, right.
        depthwise: whether each channel has filters of its own, `k // c` of them.
    """

    n: int
    c: int
    h: int
    w: int
    k: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int] = (1, 1)
    dtype: str = "float32"
    depthwise: bool = False

    @property
    def padded(self) -> tuple[int, int]:
        """Return height and width of the data with its padding."""
        top, left, bottom, right = self.padding
        return self.h + top + bottom, self.w + left + right

    @property
    def out(self) -> tuple[int, int]:
        """Return height and width of the output."""
        sizes = zip(self.padded, self.kernel, self.stride, self.dilation, strict=True)
        height, width = ((size - (kernel - 1) * dilation - 1) // stride + 1 for size, kernel, stride, dilation in sizes)
        return height, width

    @property
    def flops(self) -> float:
        """Return the operations of the direct algorithm, two for a multiply-add."""
        return 2.0 * self.n * self.k * prod(self.out) * prod(self.kernel) * (1 if self.depthwise else self.c)

    def reads(self, rows: int, columns: int, kernel: Sequence[int]) -> tuple[int, int]:
        """Return height and width of the data that a tile of the output and of the kernel needs."""
        sizes = zip((rows, columns), kernel, self.stride, self.dilation, strict=True)
        height, width = ((size - 1) * stride + (taps - 1) * dilation + 1 for size, taps, stride, dilation in sizes)
        return height, width


@dataclass(frozen=True, slots=True)
class Matmul:
    """(batch) x m x k times k x n; `weights` has a `T` for an operand that is stored the other way round.

    `dense` tells a dense layer from a batch of one.
    """

    batch: int
    m: int
    n: int
    k: int
    weights: str
    dtype: str
    dense: bool = False

    @property
    def flops(self) -> float:
        """Return the operations, two for a multiply-add."""
        return 2.0 * self.batch * self.m * self.n * self.k


Problem = Conv | Matmul


_Size = Annotated[int, msgspec.Meta(ge=1)]


class _Tensor(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    tag: Literal["TENSOR"]
    shape: list[_Size]
    dtype: Any


def problem(template: str, args: Sequence[Any]) -> Problem | None:
    """Return the problem of an AutoTVM task; None when the template's name tells of no operator known here.

    Of the arguments a tensor is `["TENSOR", shape, dtype]`. Strides, dilation and padding may be integers or lists;
    padding also `"VALID"` (0) or `"SAME"` (kernel - 1 in total).

    Raises:
        TraceFormatError: the arguments do not have the operator's form.
    """
    try:
        if template.startswith(("conv2d_", "depthwise_conv2d_")):
            return _conv(args, depthwise=template.startswith("depthwise"))
        if template.startswith("dense_"):
            return _dense(args)
        return _batch_matmul(args) if template.startswith("batch_matmul") else None
    except (ValueError, TypeError, IndexError) as error:
        raise TraceFormatError(
            f"the arguments of {template} are malformed: {error}",
            remedy='Pass the arguments as the log has them, tensors as ["TENSOR", shape, dtype].',
        ) from error


def _conv(args: Sequence[Any], depthwise: bool) -> Conv:
    (n, c, h, w), dtype = _tensor(args[0], 4)
    (k, inner, *taps), _ = _tensor(args[1], 4)
    if depthwise:
        k, inner = k * inner, c
    if inner != c or k % (c if depthwise else 1):
        raise ValueError(f"a kernel {args[1][1]} for {c} channels")
    kernel, stride, dilation = (taps[0], taps[1]), pair(args[2]), pair(args[4])
    conv = Conv(n, c, h, w, k, kernel, stride, paddings(args[3], kernel, dilation), dilation, dtype, depthwise)
    if min(conv.out) < 1:
        raise ValueError("the output is empty")
    return conv


def _dense(args: Sequence[Any]) -> Matmul:
    (m, k), dtype = _tensor(args[0], 2)
    weights, _ = _tensor(args[1], 2)
    # TVM's own dense also takes a bias and an output type, and stores its weights n x k.
    stored = "NN" if len(args) == 2 and weights[0] == k else "NT"
    n, inner = weights if stored == "NT" else weights[::-1]
    if inner != k:
        raise ValueError(f"weights {weights} for {k} inputs")
    return Matmul(1, m, n, k, stored, dtype, dense=True)


def _batch_matmul(args: Sequence[Any]) -> Matmul:
    left, dtype = _tensor(args[0], 3)
    right, _ = _tensor(args[1], 3)
    # TVM 0.8 knows no flags and stores the second operand transposed.
    flags = tuple(map(bool, args[4:6])) if len(args) >= 6 else (False, True)
    batch, (m, k) = left[0], (left[:0:-1] if flags[0] else left[1:])
    n, inner = right[1:] if flags[1] else right[:0:-1]
    if inner != k or right[0] not in (batch, 1):
        raise ValueError(f"{left} times {right}")
    return Matmul(batch, m, n, k, "TN"[not flags[0]] + "NT"[flags[1]], dtype)


def _tensor(arg: Any, rank: int) -> tuple[list[int], str]:
    tensor = msgspec.convert(arg, _Tensor)
    if len(tensor.shape) != rank:
        raise ValueError(f"no tensor of {rank} dimensions: {arg!r:.80}")
    return tensor.shape, str(tensor.dtype)


def pair(value: Any) -> tuple[int, int]:
    """Return one or two positive integers as (height, width); raise ValueError for anything else."""
    height, width = (value, value) if type(value) is int else msgspec.convert(value, tuple[_Size, _Size])
    if height < 1:
        raise ValueError(f"not one or two positive integers: {value!r:.40}")
    return height, width


def paddings(value: Any, kernel: tuple[int, int], dilation: tuple[int, int] = (1, 1)) -> tuple[int, int, int, int]:
    """Return the padding at the top, left, bottom and right; raise ValueError for none that AutoTVM writes.

    Args:
        value: `"VALID"` (none), `"SAME"` (kernel - 1 in all, the larger half first, as TVM's topi has it), an integer,
            or a list of one, two or four.
    """
    if value == "VALID":
        return 0, 0, 0, 0
    if value == "SAME":
        height, width = ((taps - 1) * step for taps, step in zip(kernel, dilation, strict=True))
        return (height + 1) // 2, (width + 1) // 2, height // 2, width // 2
    sizes = [value] if type(value) is int else msgspec.convert(value, list[int])
    if len(sizes) not in (1, 2, 4) or min(sizes) < 0:
        raise ValueError(f"not a padding: {value!r:.40}")
    top, left, bottom, right = sizes * (4 // len(sizes))
    return top, left, bottom, right
