"""What a program is given, and how often it is timed: the same on every machine."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

ArgsInfo = Sequence[tuple[Sequence[int], str]]
_ALIGNMENT = 64  # what TVM's kernels expect of a buffer's first byte
# The standard error of a median is 1.253 sigma / sqrt(n), and the quartiles of a normal lie 1.349 sigma apart.
_QUARTILES_TO_ERROR = 1.253 / 1.349


@dataclass(frozen=True)
class TimingConfig:
    """Settings of timing one program.

    Attributes:
        min_repeat_seconds: a repeat runs the program often enough to last this long.
        min_repeats: repeats always taken, except of clearly slow programs.
        spread: stop when the standard error of the median, as a share of it, is under this.
        max_seconds: stop after this much timing, whatever the spread.
        slow_factor: a program this many times slower than the best known of its task gets one repeat only.
        good_factor: a program within this factor of the best gets repeats until half of `spread`.
        weights: bytes of weights that a network reads between two runs of a program. The program's own are then at
            another address in each run, and come from the level of memory that they come from in the network.
    """

    min_repeat_seconds: float = 0.004
    min_repeats: int = 3
    max_repeats: int = 10
    spread: float = 0.01
    max_seconds: float = 0.6
    slow_factor: float = 5.0
    good_factor: float = 1.2
    weights: int = 0


def _is_slow(cost: float, best: float | None, config: TimingConfig) -> bool:
    return best is not None and cost > config.slow_factor * best


def _is_enough(costs: Sequence[float], best: float | None, seconds: float, config: TimingConfig) -> bool:
    """Return whether to stop repeating after so many seconds of timing."""
    if len(costs) >= config.max_repeats or (costs and _is_slow(min(costs), best, config)):
        return True
    if len(costs) < config.min_repeats:
        return False
    if seconds > config.max_seconds:
        return True
    if len(costs) < 2:
        return False
    low, middle, high = statistics.quantiles(costs, n=4)
    error = _QUARTILES_TO_ERROR * (high - low) / (middle * math.sqrt(len(costs))) if middle > 0 else 0.0
    good = best is None or statistics.median(costs) <= config.good_factor * best
    return error < (config.spread / 2 if good else config.spread)


def take_repeats(run: Callable[[int, int], list[float]], config: TimingConfig, best: float | None) -> list[float]:
    """Return the seconds a run, one entry a repeat: as many as it takes to know their median well enough.

    Args:
        run: given how often to run in a row and how many repeats, seconds a run of each repeat.
        best: latency in seconds of the task's fastest known program, or None.
    """
    start = time.perf_counter()
    # The faster of two, so that one preempted run (10 ms) does not make a program of 0.3 ms look slow.
    firsts = run(1, 2)
    first = min(firsts)
    if first > config.min_repeat_seconds and _is_slow(first, best, config):
        return [first]
    number = max(1, int(config.min_repeat_seconds / max(first, 1e-9)))
    # A long program's first runs are repeats as good as any.
    costs = firsts[: config.max_repeats] if number == 1 else []
    while not _is_enough(costs, best, time.perf_counter() - start, config):
        # Each call runs the program once untimed, so the repeats of a long one, which are sure to be taken, share it.
        costs += run(number, max(1, config.min_repeats - len(costs)) if number == 1 else 1)
    return costs


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
    """Both booleans, or integers that may be indices or divisors: 1 and 2, where a dimension has extent 2 only 1.

    Those of a quantised product have either sign, or its sums would be cut off to the largest number of 8 bits; so have
    those that are stored four to a word.
    """
    if dtype == "uint32" and len(shape) > 2:
        return (2 * generator.integers(0, 2, size=(*shape, 4)) - 1).astype(np.int8).view(np.uint32)[..., 0]
    drawn = generator.integers(0, 2, size=tuple(shape))
    if dtype.startswith("bool"):
        return drawn
    if dtype == "int8" and len(shape) > 2:
        return 2 * drawn - 1
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
