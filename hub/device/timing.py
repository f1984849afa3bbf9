"""How one program is timed: repeats until their median is known well enough, and no further."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

# Of a process that times programs of several threads: they stay on its cores, and go to sleep some milliseconds after
# a run, which leaves back-to-back runs as they are; by default they turn in circles for a quarter of a second, beside
# whatever is timed next.
POOL_ENVIRONMENT = {"TVM_BIND_THREADS": "0", "TVM_THREAD_POOL_SPIN_COUNT": "10000"}
POOL_SETTLE_SECONDS = 0.02
# What MetaSchedule's own runners call to flush the cache; it leaves the first argument, the activations, in it.
_FLUSH = "cache_flush_cpu_non_first_arg"
# The standard error of a median is 1.253 sigma / sqrt(n), and the quartiles of a normal lie 1.349 sigma apart.
_QUARTILES_TO_ERROR = 1.253 / 1.349


@dataclass(frozen=True)
class TimingConfig:
    """How one program is timed.

    Attributes:
        min_repeat_seconds: a repeat runs the program often enough to last this long.
        min_repeats: repeats always taken, except of clearly slow programs.
        max_repeats: repeats at most.
        spread: stop when the standard error of the median, as a share of it, is under this.
        max_seconds: stop after this much timing, whatever the spread.
        slow_factor: a program this many times slower than the best known of its task gets one repeat only.
        good_factor: a program within this factor of the best gets repeats until half of `spread`.
        flush: empty the cache before each run, which then is a repeat of its own: the latency of a program whose
            weights come from memory.
    """

    min_repeat_seconds: float = 0.004
    min_repeats: int = 3
    max_repeats: int = 10
    spread: float = 0.01
    max_seconds: float = 0.6
    slow_factor: float = 5.0
    good_factor: float = 1.2
    flush: bool = False


def median_error(costs: Sequence[float]) -> float:
    """The standard error of the median of two repeats or more, as a share of it."""
    low, middle, high = statistics.quantiles(costs, n=4)
    return _QUARTILES_TO_ERROR * (high - low) / (middle * math.sqrt(len(costs))) if middle > 0 else 0.0


def is_slow(cost: float, best: float | None, config: TimingConfig) -> bool:
    """Whether a program is clearly slower than the best of its task."""
    return best is not None and cost > config.slow_factor * best


def is_enough(costs: Sequence[float], best: float | None, seconds: float, config: TimingConfig) -> bool:
    """Whether to stop repeating.

    Args:
        costs: seconds a run, one entry a repeat.
        best: latency of the task's fastest known program, or None.
        seconds: what the timing took so far.
    """
    if len(costs) >= config.max_repeats:
        return True
    if costs and is_slow(min(costs), best, config):
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
    if first > config.min_repeat_seconds and is_slow(first, best, config):
        return [first]
    number = 1 if config.flush else max(1, int(config.min_repeat_seconds / max(first, 1e-9)))
    # A long program's first runs are repeats as good as any.
    costs = firsts if number == 1 else []
    while not is_enough(costs, best, time.perf_counter() - start, config):
        # Each call runs the program once untimed, so the repeats of a long one, which are sure to be taken, share it.
        costs += run(number, max(1, config.min_repeats - len(costs)) if number == 1 else 1)
    return costs


def time_kernel(module: Any, args: Sequence[Any], device: Any, config: TimingConfig, best: float | None) -> list[float]:
    """Time `main` of a loaded module, which may be on another machine, as its device; see `take_repeats`."""
    preproc = _FLUSH if config.flush else ""

    def run(number: int, repeat: int) -> list[float]:
        evaluate = module.time_evaluator("main", device, number=number, repeat=repeat, f_preproc=preproc)
        return [float(cost) for cost in evaluate(*args).results]

    return take_repeats(run, config, best)
