"""Contents of a program's arguments: random values, and weights that are at another address in each run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

ArgsInfo = Sequence[tuple[Sequence[int], str]]
Array = np.ndarray[Any, Any]


def random_values(args_info: ArgsInfo) -> list[Array]:
    """Random contents, the same for the same shapes: zeros let a processor take short cuts."""
    generator = np.random.default_rng(0)
    values = []
    for shape, dtype in args_info:
        if dtype.startswith(("int", "uint", "bool")):
            contents = random_integers(generator, shape, dtype, args_info)
        else:
            contents = generator.random(size=tuple(shape), dtype=np.float32) + 0.1
        values.append(contents.astype(numpy_dtype(dtype)))
    return values


def random_integers(generator: np.random.Generator, shape: Sequence[int], dtype: str, args_info: ArgsInfo) -> Array:
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


# Where the next weights of a dtype begin.
_taken: Counter[str] = Counter()
_LINE = 64  # bytes; of a cache, and what TVM aligns tensors to


def turns_of(args_info: ArgsInfo, args: Sequence[Any], weights: Sequence[int], size: int) -> Iterator[Sequence[Any]]:
    """Yield arguments of one run after the other, the weights each time from another part of `size` bytes."""
    while True:
        taken = list(args)
        for position in weights:
            weight = _take(*args_info[position], size)
            taken[position] = args[position] if weight is None else weight
        yield taken


def _take(shape: Sequence[int], dtype: str, size: int) -> Any:
    """Return the next part of the memory of a dtype; None for a tensor that is larger than it."""
    import tvm

    memory, needed = _memory(dtype, size), math.prod(shape) * numpy_dtype(dtype).itemsize
    if needed > size:
        return None
    start = _taken[dtype] if _taken[dtype] + needed <= size else 0
    _taken[dtype] = start + -(-needed // _LINE) * _LINE
    part: Any = tvm.runtime.from_dlpack(memory[start : start + needed])
    return part._create_view(shape, dtype)


@lru_cache(maxsize=2)
def _memory(dtype: str, size: int) -> Array:
    """Return bytes of random contents, at a border of cache lines."""
    (some,) = random_values([((1 << 16,), dtype)])
    memory = np.empty(size + _LINE, np.uint8)
    start = -memory.ctypes.data % _LINE
    memory[start : start + size] = np.resize(some.view(np.uint8), size)
    return memory[start : start + size]
