"""Noise of this machine: load, neighbours, clock governor, and the spread of one kernel's repeats."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .host_facts import usable_cpus
from .patience import family_seconds

GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
REPEATS = 30
BUSY_SHARE = 0.4
_LOOK_SECONDS = 5.0


@dataclass(frozen=True)
class Spread:
    """Distance of repeats of one kernel from their median, as a share of it.

    Attributes:
        median_seconds: the median repeat.
        p50: the median distance.
        p90: the 90th percentile of the distances.
    """

    median_seconds: float
    p50: float
    p90: float


@dataclass(frozen=True)
class Business:
    """Load by other processes, watched for a moment.

    Attributes:
        load: the 1-minute load average per usable CPU.
        busy: share of the CPUs' time that was taken, this process's own included, 0 to 1.
        stolen: share that the hypervisor gave to others, 0 to 1.
    """

    load: float
    busy: float
    stolen: float


def spread_of(seconds: Sequence[float]) -> Spread:
    """The spread of repeats.

    Args:
        seconds: at least one repeat's time.
    """
    times = np.asarray(seconds, dtype=np.float64)
    median = float(np.median(times))
    p50, p90 = np.percentile(np.abs(times - median) / median, [50, 90])
    return Spread(median, float(p50), float(p90))


def measure_spread(repeats: int = REPEATS, kernel: Callable[[], object] | None = None) -> Spread:
    """Time one kernel again and again, after three warm-up runs.

    Args:
        repeats: timed runs.
        kernel: what to run; by default a matrix product of a few milliseconds on one thread.
    """
    kernel = kernel or _matrix_product()
    for _ in range(3):
        kernel()
    return spread_of([_timed(kernel) for _ in range(repeats)])


def watch_business(usable: int, seconds: float = 0.5) -> Business:
    """Watch the CPUs for `seconds`, doing nothing meanwhile."""
    import psutil

    before = psutil.cpu_times()
    time.sleep(seconds)
    after = psutil.cpu_times()
    spent = {name: getattr(after, name) - getattr(before, name) for name in after._fields}
    counted = [name for name in spent if name not in ("guest", "guest_nice")]  # these are in user and nice too
    total = sum(spent[name] for name in counted) or 1.0
    idle = spent.get("idle", 0.0) + spent.get("iowait", 0.0)
    stolen = spent.get("steal", 0.0)
    load = os.getloadavg()[0] / max(1, usable) if hasattr(os, "getloadavg") else 0.0
    return Business(load, max(0.0, (total - idle - stolen) / total), stolen / total)


class Neighbours:
    """Says once when other processes take most of the CPUs that this one may use.

    Args:
        note: told a sentence.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._told = False
        self._before = _spent()

    def look(self) -> None:
        """Look at what was spent since the last look; does nothing within some seconds of it."""
        before = self._before
        if self._told or time.monotonic() - before.at < _LOOK_SECONDS:
            return
        now = self._before = _spent()
        # A process that has ended meanwhile takes its seconds with it: only what the others used is known.
        own = sum(max(0.0, seconds - before.own.get(pid, 0.0)) for pid, seconds in now.own.items())
        share = (now.busy - before.busy - own) / ((now.at - before.at) * usable_cpus())
        if share > BUSY_SHARE:
            self._told = True
            self._note(
                f"this machine is busy: other processes take {min(share, 1.0):.0%} of its cores; the run goes on, "
                "slower, and latencies are less sure"
            )


@dataclass(frozen=True)
class _Spent:
    """The clock; seconds that the CPUs of this process were busy or stolen; those of its own family, by process."""

    at: float
    busy: float
    own: dict[int, float]


def _spent() -> _Spent:
    import psutil

    mine = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    cpus = [times for cpu, times in enumerate(psutil.cpu_times(percpu=True)) if mine is None or cpu in mine]
    idle = sum(times.idle + getattr(times, "iowait", 0.0) for times in cpus)
    counted = (name for name in cpus[0]._fields if name not in ("guest", "guest_nice"))
    busy = sum(getattr(times, name) for name in counted for times in cpus) - idle
    return _Spent(time.monotonic(), busy, family_seconds(os.getpid()))


def read_governor(path: Path = GOVERNOR) -> str | None:
    """The clock governor of the first CPU, or None where the system does not tell (virtual machines)."""
    try:
        return path.read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def _matrix_product() -> Callable[[], object]:
    rng = np.random.default_rng(0)
    a, b = rng.random((2, 160, 160), dtype=np.float32)
    # einsum without optimize runs a plain loop on one thread: no BLAS, whose threads would blur the clock.
    return lambda: np.einsum("ij,jk->ik", a, b)


def _timed(kernel: Callable[[], object]) -> float:
    start = time.perf_counter()
    kernel()
    return time.perf_counter() - start
