"""How quiet this machine is: load, neighbours, clock governor, and the spread of one kernel's repeats."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
REPEATS = 30


@dataclass(frozen=True)
class Spread:
    """How far repeats of one kernel lie from their median, as a share of it.

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
    """What else runs here, watched for a moment.

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
