"""What a task computes, in one text for all frameworks: the key by which tasks of different corpora are joined.

The text names the operator and its sizes; it leaves out what does not make another problem to tune: layout,
data type, padding, and what is fused behind the operator. Leaving padding out errs on the safe side: two
convolutions that differ in it alone never stand on both sides of a split.
"""

from __future__ import annotations

from collections.abc import Sequence


def conv2d(
    n: int, c: int, h: int, w: int, k: int, kernel: tuple[int, int], stride: tuple[int, int], groups: int = 1
) -> str:
    """A two-dimensional convolution: n images of c channels, h x w pixels, k filters."""
    text = f"conv2d-n{n}c{c}h{h}w{w}-k{k}r{kernel[0]}x{kernel[1]}-s{stride[0]}x{stride[1]}"
    return text if groups == 1 else f"{text}-g{groups}"


def depthwise(n: int, c: int, h: int, w: int, kernel: tuple[int, int], stride: tuple[int, int]) -> str:
    """A depthwise convolution with one filter a channel."""
    return f"depthwise-n{n}c{c}h{h}w{w}-r{kernel[0]}x{kernel[1]}-s{stride[0]}x{stride[1]}"


def matmul(m: int, n: int, k: int, batch: int = 1) -> str:
    """(batch) x m x k times k x n."""
    return f"matmul-b{batch}m{m}n{n}k{k}"


def pool(kind: str, n: int, c: int, h: int, w: int, kernel: tuple[int, int], stride: tuple[int, int]) -> str:
    """Pooling; `kind` is `max` or `avg`."""
    return f"{kind}pool-n{n}c{c}h{h}w{w}-r{kernel[0]}x{kernel[1]}-s{stride[0]}x{stride[1]}"


def reduction(shape: Sequence[int], axes: Sequence[int]) -> str:
    """A reduction of a tensor over some of its axes."""
    return f"reduction-{'x'.join(map(str, shape))}-over{'.'.join(map(str, axes))}"


def elementwise(shape: Sequence[int]) -> str:
    """An elementwise function of a tensor."""
    return f"elementwise-{'x'.join(map(str, shape))}"


def unknown(text: str) -> str:
    """A computation known by its framework's name for it alone (a hash of its graph, a fused subgraph)."""
    return f"other-{text}"
