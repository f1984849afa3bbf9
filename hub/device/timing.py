"""Timing of a program in this process; a reference kernel shows disturbances."""

import math
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from .onsite.runs import ArgsInfo, TimingConfig, aligned_bytes, numpy_dtype, random_values, take_repeats

# Of a process that times programs of several threads: they stay on its cores, and go to sleep some milliseconds after
# a run, which leaves back-to-back runs as they are; by default they turn in circles for a quarter of a second, beside
# whatever is timed next.
POOL_ENVIRONMENT = {"TVM_BIND_THREADS": "0", "TVM_THREAD_POOL_SPIN_COUNT": "10000"}
POOL_SETTLE_SECONDS = 0.02
# Weights under this stay in a second-level cache; those over the other are in memory, as far as a core's share of the
# last level goes.
_LEAST_WEIGHTS, _MOST_WEIGHTS = 1 << 20, 128 << 20


def weights_between(total: int) -> int:
    """Return `TimingConfig.weights` of a network that reads so many bytes: a power of two, or 0."""
    return 0 if total < _LEAST_WEIGHTS else min(1 << (total - 1).bit_length(), _MOST_WEIGHTS)


def time_kernel(module: Any, args: Sequence[Any], device: Any, config: TimingConfig, best: float | None) -> list[float]:
    """Time `main` of a loaded module, which may be on another machine, as its device; see `take_repeats`."""

    def run(number: int, repeat: int) -> list[float]:
        evaluate = module.time_evaluator("main", device, number=number, repeat=repeat)
        return [float(cost) for cost in evaluate(*args).results]

    return take_repeats(run, config, best)


def time_in_turn(
    program: Callable[..., Any], turns: Iterator[Sequence[Any]], config: TimingConfig, best: float | None
) -> list[float]:
    """Time a function of this process that takes other arguments in each run; see `take_repeats`."""

    def once(number: int) -> float:
        runs = [next(turns) for _ in range(number)]
        start = time.perf_counter()
        for args in runs:
            program(*args)
        return (time.perf_counter() - start) / number

    def run(number: int, repeat: int) -> list[float]:
        once(1)
        return [once(number) for _ in range(repeat)]

    return take_repeats(run, config, best)


# Where the next weights of a dtype begin.
_taken: Counter[str] = Counter()
_MOST_TURNS = 4  # times the bytes of a network's weights, for those of one run
_LINE = 64  # bytes; of a cache, and what TVM aligns tensors to


def turns_of(args_info: ArgsInfo, args: Sequence[Any], weights: Sequence[int], size: int) -> Iterator[Sequence[Any]]:
    """Yield arguments of one run after the other, the weights each time from another part of `size` bytes.

    Where a run reads more than half of that, it takes turns with as many bytes more: at the same place, they would stay
    in a large last-level cache, which the network's other weights empty.
    """
    whole = {position: _whole(*args_info[position]) for position in weights}
    read = Counter[str]()
    for position in (position for position in weights if whole[position] <= size):
        read[args_info[position][1]] += whole[position]
    rooms = {dtype: max(size, min(2 * count, _MOST_TURNS * size)) for dtype, count in read.items()}
    while True:
        for dtype, room in rooms.items():
            if _taken[dtype] + read[dtype] > room or (room == 2 * read[dtype] and _taken[dtype] % read[dtype]):
                _taken[dtype] = 0
        taken = list(args)
        for position in weights:
            if whole[position] <= size:
                shape, dtype = args_info[position]
                taken[position] = _take(shape, dtype, rooms[dtype])
        yield taken


def _whole(shape: Sequence[int], dtype: str) -> int:
    """Return the bytes of a tensor, to the end of its last cache line."""
    return -(-math.prod(shape) * numpy_dtype(dtype).itemsize // _LINE) * _LINE


def _take(shape: Sequence[int], dtype: str, room: int) -> Any:
    """Return the next part of `room` bytes of a dtype."""
    import tvm

    memory, whole = _memory(dtype, room), _whole(shape, dtype)
    start = _taken[dtype] if _taken[dtype] + whole <= room else 0
    _taken[dtype] = start + whole
    needed = math.prod(shape) * numpy_dtype(dtype).itemsize
    part: Any = tvm.runtime.from_dlpack(memory[start : start + needed])
    return part._create_view(shape, dtype)


_memories: dict[str, Any] = {}


def _memory(dtype: str, size: int) -> Any:
    """Return bytes of random contents, at a border of cache lines, at least as many as are asked for."""
    if dtype not in _memories or _memories[dtype].nbytes < size:
        _memories.pop(dtype, None)
        (some,) = random_values([((1 << 16,), dtype)])
        few, memory = some.view(np.uint8), aligned_bytes(size)
        for start in range(0, size, few.nbytes):
            memory[start : start + few.nbytes] = few[: size - start]
        _memories[dtype] = memory
    return _memories[dtype]


T = TypeVar("T")
# The reference kernel may be slower than usual by this share.
_TOLERANCE = 0.15
# A disturbed program is measured again so many times.
RETRIES = 2
# References taken before the first decision, and those that the usual time is learned from: after a lasting slowdown
# the new time is the usual one when three quarters of them are new.
_LEARN, _WINDOW = 7, 64


class DriftWatch:
    """Learns the reference kernel's usual time, and tells deviations from it."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=_WINDOW)

    @property
    def usual(self) -> float | None:
        """The reference's usual seconds: its lower quartile, or None while it is learned."""
        return float(np.percentile(self._times, 25)) if len(self._times) >= _LEARN else None

    def is_disturbed(self, seconds: float) -> bool:
        """Take one reference time; return whether it is out of the usual."""
        usual = self.usual
        self._times.append(seconds)
        return usual is not None and seconds > (1.0 + _TOLERANCE) * usual


def measure_watched(measure: Callable[[], T], reference: Callable[[], float], watch: DriftWatch) -> tuple[T, int, bool]:
    """Measure; measure again while the reference after it is out of the usual, at most `RETRIES` times.

    Returns the last measurement, how often it was repeated, and whether the reference was out of the usual at the end.
    """
    while watch.usual is None:
        watch.is_disturbed(reference())
    value, repeated = measure(), 0
    disturbed = watch.is_disturbed(reference())
    while disturbed and repeated < RETRIES:
        value, repeated = measure(), repeated + 1
        disturbed = watch.is_disturbed(reference())
    return value, repeated, disturbed


_MOST_CPUS = 4
_SIDE = 64  # a quarter of a million multiply-adds: four of them are under 2 % of the time that a program takes


def product_kernel(side: int) -> Callable[[], float]:
    """Make a function that times a product of two square matrices, in seconds."""
    a, b = np.random.default_rng(0).random((2, side, side), dtype=np.float32)
    out = np.empty((side, side), np.float32)

    def once() -> float:
        start = time.perf_counter()
        # einsum without optimize runs a plain loop on one thread: no BLAS, whose threads would blur the clock.
        np.einsum("ij,jk->ik", a, b, out=out)
        return time.perf_counter() - start

    return once


def make_reference_kernel(cpus: Sequence[int] = ()) -> Callable[[], float]:
    """Make a function that times a small matrix product: the median of three, in seconds.

    For a program on several CPUs it is the worst on up to `_MOST_CPUS` of them, which take turns, since one slow thread
    holds up the others.
    """
    once = product_kernel(_SIDE)

    def median_of_three() -> float:
        once()  # the program before it has emptied the cache
        return sorted(once() for _ in range(3))[1]

    turns = deque(cpus)

    def worst() -> float:
        time.sleep(POOL_SETTLE_SECONDS)
        slowest = 0.0
        for cpu in list(turns)[:_MOST_CPUS]:
            os.sched_setaffinity(0, (cpu,))  # this thread alone
            slowest = max(slowest, median_of_three())
        turns.rotate(-_MOST_CPUS)
        os.sched_setaffinity(0, cpus)
        return slowest

    return worst if len(cpus) > 1 else median_of_three
