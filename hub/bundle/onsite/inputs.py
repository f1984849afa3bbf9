"""Random arguments of a task: the same on every machine, and the same for all programs of a task."""

from __future__ import annotations

from typing import Any

import numpy as np

_ALIGNMENT = 64  # what TVM's kernels expect of a buffer's first byte


def aligned(shape: list[int], dtype: str) -> Any:
    """An array of zeros that starts at a multiple of 64 bytes."""
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + _ALIGNMENT, dtype=np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)


def random_arguments(args: list[Any]) -> list[Any]:
    """One array an argument, `[[shape, dtype], ...]`, with the contents that `tchub collect` gives them.

    Random contents: zeros let a processor take short cuts. Integers are indices or divisors: 1 and 2, where a dimension
    has extent 2 only 1.
    """
    generator = np.random.default_rng(0)
    highest = 1 if any(2 in shape for shape, _ in args) else 2
    arrays = []
    for shape, dtype in args:
        array = aligned(shape, dtype)
        if dtype.startswith(("int", "uint", "bool")):
            drawn = generator.integers(0, 2, size=tuple(shape))
            array[...] = drawn if dtype.startswith("bool") else np.minimum(drawn + 1, highest)
        else:
            array[...] = generator.random(size=tuple(shape), dtype=np.float32) + np.float32(0.1)
        arrays.append(array)
    return arrays


def copied(arrays: list[Any]) -> list[Any]:
    """Copies for a program to write into."""
    copies = [aligned(list(array.shape), str(array.dtype)) for array in arrays]
    for copy, array in zip(copies, arrays, strict=True):
        copy[...] = array
    return copies


def fingerprint(arrays: list[Any]) -> list[list[float]]:
    """[sum, sum of absolute values] of each array: programs of one task on equal inputs must agree on them."""
    with np.errstate(all="ignore"):
        return [[float(x.sum(dtype=np.float64)), float(np.abs(x).sum(dtype=np.float64))] for x in arrays]
