"""How often a program is repeated: until its repeats agree, or it is clearly slower than the task's best."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any


def _spread(costs: list[float]) -> float:
    low, middle, high = statistics.quantiles(costs, n=4)
    return (high - low) / middle if middle > 0 else 0.0


def time_program(run: Callable[[int], float], timing: dict[str, Any], best: float | None) -> list[float]:
    """Time a program as `tchub collect` does, so that latencies of both mean the same.

    Args:
        run: runs the program so often and gives the mean seconds a run.
        timing: the fields of tchub's `TimingConfig`, from the manifest.
        best: latency in seconds of the task's fastest known program, or None.

    Returns:
        Seconds a run, one entry a repeat.
    """
    start = time.perf_counter()
    least = timing["min_repeat_seconds"]
    # The faster of two: the first run also pages in code and data.
    first = min(run(1) for _ in range(2))
    if best is not None and first > timing["slow_factor"] * best and first > least:
        return [first]
    number = max(1, int(least / max(first, 1e-9)))
    costs: list[float] = []
    while len(costs) < timing["max_repeats"]:
        costs.append(run(number))
        if len(costs) < timing["min_repeats"]:
            continue
        agreed = len(costs) > 1 and _spread(costs) < timing["spread"]
        if agreed or time.perf_counter() - start > timing["max_seconds"]:
            break
    return costs
