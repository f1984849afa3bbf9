"""Contents of a program's arguments, the same on every machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

ArgsInfo = Sequence[tuple[Sequence[int], str]]
_ALIGNMENT = 64  # what TVM's kernels expect of a buffer's first byte


def random_values(args_info: ArgsInfo) -> list[Any]:
    """Random contents, the same for the same shapes: zeros let a processor take short cuts."""
    generator = np.random.default_rng(0)
    values = []
    for shape, dtype in args_info:
        if dtype.startswith(("int", "uint", "bool")):
            contents = random_integers(generator, shape, dtype, args_info)
        else:
            contents = generator.random(size=tuple(shape), dtype=np.float32) + 0.1
        values.append(np.asarray(contents, numpy_dtype(dtype)))  # of one number NumPy makes no array
    return values


def random_integers(generator: np.random.Generator, shape: Sequence[int], dtype: str, args_info: ArgsInfo) -> Any:
    """Both booleans, or integers that may be indices or divisors: 1 and 2, where a dimension has extent 2 only 1."""
    drawn = generator.integers(0, 2, size=tuple(shape))
    if dtype.startswith("bool"):
        return drawn
    return np.minimum(drawn + 1, 1 if any(2 in extents for extents, _ in args_info) else 2)


def numpy_dtype(dtype: str) -> Any:
    """Return the dtype of NumPy, or of what extends it, for one of TVM's."""
    try:
        return np.dtype(dtype)
    except TypeError:
        import ml_dtypes  # bfloat16 and the 8-bit floats, which numpy alone does not know

        return np.dtype(getattr(ml_dtypes, dtype))


def aligned_bytes(size: int) -> Any:
    """Return so many bytes that begin at a multiple of 64."""
    raw = np.empty(size + _ALIGNMENT, dtype=np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + size]


def aligned_copies(arrays: Sequence[Any]) -> list[Any]:
    """Return copies for a program to write into, each at a multiple of 64 bytes."""
    copies = [aligned_bytes(array.nbytes).view(array.dtype).reshape(array.shape) for array in arrays]
    for copy, array in zip(copies, arrays, strict=True):
        copy[...] = array
    return copies
