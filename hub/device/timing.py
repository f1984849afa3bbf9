"""Timing of one program: repeats until their median is known well enough; a reference kernel shows disturbances."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

# Of a process that times programs of several threads: they stay on its cores, and go to sleep some milliseconds after
# a run, which leaves back-to-back runs as they are; by default they turn in circles for a quarter of a second, beside
# whatever is timed next.
POOL_ENVIRONMENT = {"TVM_BIND_THREADS": "0", "TVM_THREAD_POOL_SPIN_COUNT": "10000"}
POOL_SETTLE_SECONDS = 0.02
# The standard error of a median is 1.253 sigma / sqrt(n), and the quartiles of a normal lie 1.349 sigma apart.
_QUARTILES_TO_ERROR = 1.253 / 1.349


@dataclass(frozen=True)
class TimingConfig:
    """Settings of timing one program.

    Attributes:
        min_repeat_seconds: a repeat runs the program often enough to last this long.
        min_repeats: repeats always taken, except of clearly slow programs.
        max_repeats: repeats at most.
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


# Weights under this stay in a second-level cache; those over the other are in memory, as far as a core's share of the
# last level goes.
_LEAST_WEIGHTS, _MOST_WEIGHTS = 1 << 20, 128 << 20


def weights_between(total: int) -> int:
    """Return `TimingConfig.weights` of a network that reads so many bytes: a power of two, or 0."""
    return 0 if total < _LEAST_WEIGHTS else min(1 << (total - 1).bit_length(), _MOST_WEIGHTS)


def median_error(costs: Sequence[float]) -> float:
    """The standard error of the median of two repeats or more, as a share of it."""
    low, middle, high = statistics.quantiles(costs, n=4)
    return _QUARTILES_TO_ERROR * (high - low) / (middle * math.sqrt(len(costs))) if middle > 0 else 0.0


def _is_slow(cost: float, best: float | None, config: TimingConfig) -> bool:
    return best is not None and cost > config.slow_factor * best


def is_enough(costs: Sequence[float], best: float | None, seconds: float, config: TimingConfig) -> bool:
    """Return whether to stop repeating.

    Args:
        costs: seconds a run, one entry a repeat.
        best: latency of the task's fastest known program, or None.
        seconds: what the timing took so far.
    """
    if len(costs) >= config.max_repeats:
        return True
    if costs and _is_slow(min(costs), best, config):
        return True
    if len(costs) < config.min_repeats:
        return False
    good = best is None or statistics.median(costs) <= config.good_factor * best
    return median_error(costs) < (config.spread / 2 if good else config.spread) or seconds > config.max_seconds


def take_repeats(run: Callable[[int, int], list[float]], config: TimingConfig, best: float | None) -> list[float]:
    """Seconds a run, one entry a repeat.

    Args:
        run: given how often to run in a row and how many repeats, seconds a run of each repeat.
        best: latency of the task's fastest known program, or None.
    """
    start = time.perf_counter()
    # The faster of two, so that one preempted run (10 ms) does not make a program of 0.3 ms look slow.
    firsts = run(1, 2)
    first = min(firsts)
    if first > config.min_repeat_seconds and _is_slow(first, best, config):
        return [first]
    number = max(1, int(config.min_repeat_seconds / max(first, 1e-9)))
    # A long program's first runs are repeats as good as any.
    costs = firsts if number == 1 else []
    while not is_enough(costs, best, time.perf_counter() - start, config):
        # Each call runs the program once untimed, so the repeats of a long one, which are sure to be taken, share it.
        costs += run(number, max(1, config.min_repeats - len(costs)) if number == 1 else 1)
    return costs


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


T = TypeVar("T")


# The reference kernel may be slower than usual by this share.
_TOLERANCE = 0.15
# A disturbed program is measured again so many times.
RETRIES = 2
# References taken before the first decision, and those that the usual time is learned from: after a lasting slowdown
# the new time is the usual one when three quarters of them are new.
_LEARN, _WINDOW = 7, 64


class DriftWatch:
    """Learns the reference kernel's usual time and tells deviations from it."""

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

    Returns:
        the last measurement, how often it was repeated, and whether the reference was out of the usual after it too.
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


def make_reference_kernel(cpus: Sequence[int] = ()) -> Callable[[], float]:
    """Make a function that times a small matrix product: the median of three, in seconds.

    Args:
        cpus: of a program of several threads: the time is the worst on up to `_MOST_CPUS` of them, which take turns,
            since one slow thread holds up the others.
    """
    rng = np.random.default_rng(0)
    a, b = rng.random((2, _SIDE, _SIDE), dtype=np.float32)
    out = np.empty((_SIDE, _SIDE), np.float32)

    def once() -> float:
        start = time.perf_counter()
        # einsum without optimize runs a plain loop on one thread: no BLAS, whose threads would blur the clock.
        np.einsum("ij,jk->ik", a, b, out=out)
        return time.perf_counter() - start

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
