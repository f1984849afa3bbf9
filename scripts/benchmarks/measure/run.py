"""Programs measured a second: stock MetaSchedule's builder and runner against tchub's, on the same candidates.

Stock is `LocalBuilder` and `LocalRunner` as TVM makes them. TVM's import, which ours does once a session, in the
background, is counted apart (`start_seconds`). Ours measures the candidates again, for the spread of repeats.
What was measured is in a journal, and a second start goes on where the first one ended.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import click

from scripts.benchmarks.common import Document, Journal, benchmark, note, work_option
from scripts.benchmarks.measure.systems import SYSTEMS, local_target

# Candidates of a task; passes for the spread.
PROGRAMS, REPEATS, SEED = 64, 3, 0
TASKS = ("conv2d-3x3", "depthwise-3x3", "dense-square", "batch-matmul-scores", "softmax-rows", "pool-max-3x3")


@dataclass(frozen=True)
class Pass:
    """One system measuring one task's candidates once: wall time, seconds a run or None, errors by candidate."""

    seconds: float
    latencies: list[float | None]
    errors: dict[str, str]
    facts: dict[str, Any]

    @property
    def failed(self) -> set[int]:
        """Indices of the failed candidates."""
        return {i for i, latency in enumerate(self.latencies) if latency is None}


def median_spread(passes: Sequence[Pass]) -> float:
    """Median over programs of how far their latencies in several passes lie from their median, as a share of it."""
    spreads = []
    for latencies in zip(*(p.latencies for p in passes), strict=True):
        known = [x for x in latencies if x is not None]
        if len(known) > 1:
            middle = statistics.median(known)
            spreads.append(max(abs(x - middle) for x in known) / middle)
    return statistics.median(spreads) if spreads else float("nan")


def rank_correlation(one: Pass, other: Pass) -> float:
    """Spearman's correlation of the latencies of the programs that both systems measured."""
    from scipy.stats import spearmanr

    pairs = [(a, b) for a, b in zip(one.latencies, other.latencies, strict=True) if a is not None and b is not None]
    if len(pairs) < 3:
        return float("nan")
    result: Any = spearmanr([a for a, _ in pairs], [b for _, b in pairs])
    return float(result.statistic)


def compare(stock: Pass, ours: Pass) -> dict[str, Any]:
    """Rates, failures and agreement of two passes over the same candidates."""
    return {
        "stock_seconds": stock.seconds,
        "ours_seconds": ours.seconds,
        "stock_rate": len(stock.latencies) / stock.seconds,
        "ours_rate": len(ours.latencies) / ours.seconds,
        "rate_ratio": stock.seconds / ours.seconds,
        "failed_stock": len(stock.failed),
        "failed_ours": len(ours.failed),
        "failed_only_ours": len(ours.failed - stock.failed),
        "errors_ours": ours.errors,
        "errors_stock": stock.errors,
        "rank_correlation": rank_correlation(stock, ours),
        "facts": ours.facts,
    }


def summarise(rows: dict[str, dict[str, Any]], spreads: dict[str, float]) -> dict[str, Any]:
    """Figures over all tasks, of `compare` by `task/system`, and of each task's spread of repeats."""

    def of(figure: str, system: str = "ours") -> list[float]:
        return [row[figure] for key, row in rows.items() if key.endswith(f"/{system}")]

    return {
        "rate_ratio": statistics.geometric_mean(of("rate_ratio")),
        **{name: int(sum(of(name))) for name in ("failed_ours", "failed_stock", "failed_only_ours")},
        "spread": statistics.median(spreads.values()),
        "spread_worst_task": max(spreads.values()),
        "rank_correlation": statistics.mean(of("rank_correlation")),
        "stock_rate": statistics.geometric_mean(of("stock_rate")),
        "ours_rate": statistics.geometric_mean(of("ours_rate")),
        "rate_ratio_forked": statistics.geometric_mean(of("rate_ratio", "forked")),
    }


@lru_cache(1)
def task_candidates(name: str) -> tuple[Any, list[Any]]:
    """A task of this machine, and at most so many of its candidates."""
    from tchub.hub.networks.workloads import tasks_of
    from tchub.hub.search.candidates import random_candidates
    from tvm.target import Target

    target = Target(local_target())
    task = tasks_of(name, target)[0]
    return task, random_candidates(task, target, PROGRAMS, SEED)


def take(name: str, system: str) -> Pass:
    """One system's pass over a task's candidates."""
    task, candidates = task_candidates(name)
    with SYSTEMS[system]() as prepared:
        start = time.perf_counter()
        results, facts = prepared(task, candidates)
        seconds = time.perf_counter() - start
    note(f"{name}/{system}: {len(candidates) / seconds:.2f} programs/s")
    errors = {str(i): error for i, (_, error) in enumerate(results) if error is not None}
    return Pass(seconds, [latency for latency, _ in results], errors, facts)


@benchmark("measure", click.option("--conditions", default="idle", type=click.Choice(["idle"])), work_option("measure"))
def main(conditions: str, work: Path) -> Document:
    """Programs a second, failures and agreement: stock LocalBuilder and LocalRunner against ours."""
    journal = Journal(work / f"journal-{PROGRAMS}-{SEED}.jsonl")

    def taken(name: str, system: str, repeat: int = 0) -> Pass:
        row = journal.get(lambda: vars(take(name, system)), key=f"{name}/{system}/{repeat}")
        return Pass(**{field: row[field] for field in Pass.__annotations__})

    rows: dict[str, dict[str, Any]] = {}
    spreads: dict[str, float] = {}
    for name in TASKS:
        stock = taken(name, "stock")
        rows |= {f"{name}/{system}": compare(stock, taken(name, system)) for system in ("ours", "forked")}
        spreads[name] = median_spread([taken(name, "ours", i) for i in range(REPEATS)])
    return summarise(rows, spreads), {conditions: rows, "spreads": spreads}, [SEED]
