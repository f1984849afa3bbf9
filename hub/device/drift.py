"""Whether the machine was disturbed while a program was timed: a reference kernel tells.

The kernel runs after each program on the same cores. Its usual time is learned from the kernel alone, so a
neighbour, a throttled clock or a stolen core shows, whatever the program does.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from .timing import POOL_SETTLE_SECONDS

T = TypeVar("T")


@dataclass(frozen=True)
class DriftConfig:
    """When a timing counts as disturbed.

    Attributes:
        tolerance: the reference may be slower than usual by this share.
        retries: times that a disturbed program is measured again; 0 watches nothing.
        learn: references taken before the first decision.
        window: references that the usual time, their lower quartile, is learned from: after a lasting slowdown the
            new time is the usual one when three quarters of them are new.
    """

    tolerance: float = 0.15
    retries: int = 2
    learn: int = 7
    window: int = 64


@dataclass
class DriftWatch:
    """Learns the reference kernel's usual time and tells deviations from it. Pure: takes times, takes none.

    Attributes:
        config: see `DriftConfig`.
    """

    config: DriftConfig = field(default_factory=DriftConfig)

    def __post_init__(self) -> None:
        self._times: deque[float] = deque(maxlen=self.config.window)

    @property
    def usual(self) -> float | None:
        """The reference's usual seconds: its lower quartile, or None while it is learned."""
        return float(np.percentile(self._times, 25)) if len(self._times) >= self.config.learn else None

    def is_disturbed(self, seconds: float) -> bool:
        """Take one reference time; whether it is out of the usual."""
        usual = self.usual
        self._times.append(seconds)
        return usual is not None and seconds > (1.0 + self.config.tolerance) * usual


@dataclass(frozen=True)
class Watched(Generic[T]):
    """A measurement and what the reference said about it.

    Attributes:
        value: the measurement, the last one taken.
        repeated: times that it was taken again.
        disturbed: whether the reference was out of the usual after the last one too.
    """

    value: T
    repeated: int
    disturbed: bool


def measure_watched(measure: Callable[[], T], reference: Callable[[], float], watch: DriftWatch) -> Watched[T]:
    """Measure; measure again while the reference after it is out of the usual, at most `retries` times."""
    while watch.config.retries and watch.usual is None:
        watch.is_disturbed(reference())
    value, repeated = measure(), 0
    if not watch.config.retries:
        return Watched(value, 0, False)
    disturbed = watch.is_disturbed(reference())
    while disturbed and repeated < watch.config.retries:
        value, repeated = measure(), repeated + 1
        disturbed = watch.is_disturbed(reference())
    return Watched(value, repeated, disturbed)


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
