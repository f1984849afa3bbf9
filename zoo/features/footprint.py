"""How much a tile reads and how well it reuses it, from the tile's sizes alone.

A sequence does not say which axes index which operand, but their numbers tell the operator apart: a
convolution has four spatial and three reduction axes, a depthwise one (or a pooling) four and two, a matrix
product two (three with a batch) and one. With the usual access pattern of that operator the elements that a
tile touches are products of its sizes: for a convolution's input n rc (y + ry - 1)(x + rx - 1), strides left out.
"""

from __future__ import annotations

from functools import partial

import numpy as np

COLUMNS = 16


def footprint(spatial: np.ndarray, reduction: np.ndarray, axes: int, reduced: int) -> np.ndarray:
    """Logarithms to the base 2 of what a program's tiles read.

    Args:
        spatial: (N, 4, 5) logarithms of the factors of each spatial slot and level (see `nest_columns`).
        reduction: (N, 3, 3) the same of the reductions.
        axes, reduced: how many spatial and reduction axes the program has.

    Returns:
        (N, 16): elements of both operands that a block reads at a step of its outermost reduction, and their
        sum; the same of a thread at a step of its inner reduction; reads from memory in all; operations a
        read, of a block and of a thread; elements that lie side by side in the first operand and in the
        output; outer reduction steps; whether channels are last; and the operator guessed, one-hot of 3.
    """
    out = np.zeros((len(spatial), COLUMNS), np.float32)
    roles = _roles(spatial, reduction, axes, reduced)
    if roles is None:
        return out
    operands, kind, last = roles
    s, r = spatial.sum(1), reduction.sum(1)
    block, steps = spatial[:, :, 1:].sum(2), reduction[:, :, 1:].sum(2)
    thread, step = spatial[:, :, 1] + spatial[:, :, 3:].sum(2), reduction[:, :, 2]
    a, b = operands(block, steps)
    c, d = operands(thread, step)
    outer = r[:, 0]
    out[:, 0], out[:, 1], out[:, 2] = a, b, np.logaddexp2(a, b)
    out[:, 3], out[:, 4], out[:, 5] = c, d, np.logaddexp2(c, d)
    out[:, 6] = s[:, 0] + outer + out[:, 2]
    out[:, 7] = block.sum(1) + steps.sum(1) - out[:, 2]
    out[:, 8] = thread.sum(1) + step.sum(1) - out[:, 5]
    channels = 0 if kind == 0 else 2  # a matrix product has one reduction, in the first slot
    out[:, 9] = np.where(last, reduction[:, channels, 1:].sum(1), block[:, 3])
    out[:, 10] = spatial[:, 3, 2:].sum(1)
    out[:, 11] = outer
    out[:, 12] = last
    out[:, 13 + kind] = 1
    return out


def _roles(spatial: np.ndarray, reduction: np.ndarray, axes: int, reduced: int):
    """(operands of a tile, operator, whether channels are last); None for an operator not known by its axes.

    The last is one answer, or (N,): programs of one structure may be of convolutions of either layout.
    """
    if axes in (2, 3) and reduced == 1:
        return _matmul, 0, True
    if axes != 4 or reduced not in (2, 3):
        return None
    if reduced == 2:
        return _depthwise, 1, False
    # Kernels are small: the largest reduction is the channels', and it is first (NCHW) or last (NHWC).
    extents = reduction.sum(2)
    last = extents[:, 2] > extents[:, 0]
    return partial(_conv, last), 2, last


def _window(tile: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    return np.log2(np.maximum(np.exp2(tile) + np.exp2(kernel) - 1, 1))


def _matmul(s: np.ndarray, r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    batch = s[:, :2].sum(1)
    return batch + s[:, 2] + r[:, 0], batch + s[:, 3] + r[:, 0]


def _depthwise(s: np.ndarray, r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return s[:, 0] + s[:, 1] + _window(s[:, 2], r[:, 0]) + _window(s[:, 3], r[:, 1]), s[:, 1] + r.sum(1)


def _conv(last: np.ndarray, s: np.ndarray, r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    (a, b), (c, d) = _conv_last(s, r), _conv_first(s, r)
    return np.where(last, a, c), np.where(last, b, d)


def _conv_first(s: np.ndarray, r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return s[:, 0] + r[:, 0] + _window(s[:, 2], r[:, 1]) + _window(s[:, 3], r[:, 2]), s[:, 1] + r.sum(1)


def _conv_last(s: np.ndarray, r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return s[:, 0] + r[:, 2] + _window(s[:, 1], r[:, 0]) + _window(s[:, 2], r[:, 1]), s[:, 3] + r.sum(1)
