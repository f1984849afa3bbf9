"""Programs measured a second: stock MetaSchedule's builder and runner against tchub's, on the same candidates.

Stock is `LocalBuilder` and `LocalRunner` as TVM makes them. Each task's candidates are measured by each system on an
idle machine and beside a process that keeps one core busy. TVM's import, which ours does once a session, in the
background, is told apart (`start_seconds`). Ours measures them again, for the spread of repeats.
What was measured is in a journal, and a second start goes on where the first one ended.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from scripts.benchmarks.common import ROOT, finish
from scripts.benchmarks.measure.systems import SYSTEMS

TASKS = ("conv2d-3x3", "depthwise-3x3", "dense-square", "batch-matmul-scores", "softmax-rows", "pool-max-3x3")
CONDITIONS = ("idle", "busy")


@dataclass(frozen=True)
class Pass:
    """One system measuring one task's candidates once.

    Attributes:
        seconds: wall time, from handing over the candidates to the last result.
        latencies: seconds a run by candidate; None for a failure.
        errors: message by failed candidate.
        facts: what else the system tells.
    """

    seconds: float
    latencies: list[float | None]
    errors: dict[str, str]
    facts: dict[str, Any]

    @property
    def failed(self) -> set[int]:
        """Places of the failed candidates."""
        return {i for i, latency in enumerate(self.latencies) if latency is None}


class BenchJournal:
    """Passes by task, system, condition and repeat, one JSON line each.

    Args:
        path: the file; another setting must have another one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._passes: dict[str, Pass] = {}
        for line in filter(None, path.read_text().splitlines() if path.exists() else ()):
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:  # the line that a killed run was writing
                continue
            key = entry.pop("key")
            self._passes[key] = Pass(**entry)

    def get(self, key: str, measure: Callable[[], Pass]) -> Pass:
        """The pass of a key, measured now unless it was before."""
        if key not in self._passes:
            taken = self._passes[key] = measure()
            with self._path.open("a") as file:
                file.write("\n" + json.dumps({"key": key, **vars(taken)}) + "\n")
                file.flush()
                os.fsync(file.fileno())
            click.echo(f"{key}: {len(taken.latencies) / taken.seconds:.2f} programs/s", err=True)
        return self._passes[key]


def _spin() -> None:
    while True:
        pass


@contextmanager
def neighbour(busy: bool) -> Iterator[None]:
    """A process that keeps a core busy meanwhile, or none."""
    if not busy:
        yield
        return
    process = multiprocessing.get_context("spawn").Process(target=_spin, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


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


def summarise(details: dict[str, dict[str, dict[str, Any]]], spreads: dict[str, float]) -> dict[str, Any]:
    """Figures over all tasks.

    Args:
        details: by condition and `task/system`, what `compare` tells.
        spreads: by task, the spread of repeats on the idle machine.
    """

    def of(condition: str, system: str, figure: str) -> list[float]:
        return [row[figure] for key, row in details[condition].items() if key.endswith(f"/{system}")]

    idle = {figure: of("idle", "ours", figure) for figure in ("failed_ours", "failed_stock", "failed_only_ours")}
    summary = {
        "rate_ratio": statistics.geometric_mean(of("idle", "ours", "rate_ratio")),
        **{figure: int(sum(values)) for figure, values in idle.items()},
        "spread": statistics.median(spreads.values()),
        "spread_worst_task": max(spreads.values()),
        "rank_correlation": statistics.mean(of("idle", "ours", "rank_correlation")),
        "stock_rate": statistics.geometric_mean(of("idle", "ours", "stock_rate")),
        "ours_rate": statistics.geometric_mean(of("idle", "ours", "ours_rate")),
    }
    if forked := of("idle", "forked", "rate_ratio"):
        summary["rate_ratio_forked"] = statistics.geometric_mean(forked)
    if busy := of("busy", "ours", "rate_ratio") if "busy" in details else []:
        summary["rate_ratio_busy"] = statistics.geometric_mean(busy)
        summary["failed_only_ours_busy"] = int(sum(of("busy", "ours", "failed_only_ours")))
        summary["rank_correlation_busy"] = statistics.mean(of("busy", "ours", "rank_correlation"))
    return summary


class Bench:
    """Measures tasks by systems, each pass once.

    Args:
        journal: what was measured before.
        programs: candidates a task at most.
        seed: of the candidates.
    """

    def __init__(self, journal: BenchJournal, programs: int, seed: int) -> None:
        self._journal, self._programs, self._seed = journal, programs, seed
        self._made: dict[str, tuple[Any, list[Any]]] = {}

    def _candidates(self, name: str) -> tuple[Any, list[Any]]:
        if name not in self._made:
            from tchub.hub.networks.tasks import tasks_of
            from tchub.hub.search.candidates import random_candidates
            from tvm.target import Target

            from scripts.benchmarks.measure.systems import local_target

            target = Target(local_target())
            task = tasks_of(name, target)[0]
            self._made[name] = task, random_candidates(task, target, self._programs, self._seed)
        return self._made[name]

    def take(self, name: str, system: str, condition: str, repeat: int = 0) -> Pass:
        """One system's pass over a task's candidates."""

        def measure() -> Pass:
            task, candidates = self._candidates(name)
            with SYSTEMS[system]() as prepared, neighbour(condition == "busy"):
                start = time.perf_counter()
                results = prepared(task, candidates)
                seconds = time.perf_counter() - start
            latencies = [result.latency for result in results.programs]
            errors = {str(i): r.error for i, r in enumerate(results.programs) if r.error is not None}
            return Pass(seconds, latencies, errors, results.facts)

        return self._journal.get(f"{name}/{system}/{condition}/{repeat}", measure)


@click.command()
@click.option("--programs", type=click.IntRange(min=4), default=64, show_default=True, help="Candidates a task.")
@click.option("--repeats", type=click.IntRange(min=2), default=3, show_default=True, help="Passes for the spread.")
@click.option("--tasks", "names", default=",".join(TASKS), show_default=True, help="Operators, comma-separated.")
@click.option("--conditions", default=",".join(CONDITIONS), show_default=True, help="idle, busy or both.")
@click.option("--forked/--no-forked", default=True, show_default=True, help="Also tchub behind MetaSchedule's classes.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the candidates.")
@click.option(
    "--work", type=click.Path(path_type=Path), default=ROOT / "runs" / "measure", help="The journal's folder."
)
@click.option("--json", "as_json", is_flag=True, help="Print the whole document.")
def main(
    programs: int, repeats: int, names: str, conditions: str, forked: bool, seed: int, work: Path, as_json: bool
) -> None:
    """Programs a second, failures and agreement: stock LocalBuilder and LocalRunner against ours."""
    started = time.time()
    bench = Bench(BenchJournal(work / f"journal-{programs}-{seed}.jsonl"), programs, seed)
    details: dict[str, dict[str, dict[str, Any]]] = {}
    spreads: dict[str, float] = {}
    for name in names.split(","):
        for condition in conditions.split(","):
            rows = details.setdefault(condition, {})
            stock = bench.take(name, "stock", condition)
            for system in ("ours", "forked") if forked and condition == "idle" else ("ours",):
                rows[f"{name}/{system}"] = compare(stock, bench.take(name, system, condition))
        spreads[name] = median_spread([bench.take(name, "ours", "idle", i) for i in range(repeats)])
    details.setdefault("idle", {})
    finish("measure", summarise(details, spreads), {**details, "spreads": spreads}, [seed], as_json, started)


if __name__ == "__main__":
    main()
