"""Programs measured a second: stock MetaSchedule's builder and runner against tchub's, on the same candidates.

Stock is `LocalBuilder` and `LocalRunner` as TVM makes them. TVM's import, which ours does once a session, in the
background, is not counted. Ours measures the candidates again, for the spread of repeats.
What was measured is in a journal, and a second start goes on where the first one ended.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from scripts.benchmarks.common import Document, Journal, benchmark, note, work_option

# Candidates of a task; passes for the spread.
PROGRAMS, REPEATS, SEED = 64, 3, 0
TASKS = ("conv2d-3x3", "depthwise-3x3", "dense-square", "batch-matmul-scores", "softmax-rows", "pool-max-3x3")


@dataclass(frozen=True)
class Pass:
    """One system measuring one task's candidates once: wall time, and seconds a run, None where it failed."""

    seconds: float
    latencies: list[float | None]

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
        "stock_seconds": stock.seconds, "ours_seconds": ours.seconds,
        "stock_rate": len(stock.latencies) / stock.seconds, "ours_rate": len(ours.latencies) / ours.seconds,
        "rate_ratio": stock.seconds / ours.seconds,
        "failed_stock": len(stock.failed), "failed_ours": len(ours.failed),
        "failed_only_ours": len(ours.failed - stock.failed), "rank_correlation": rank_correlation(stock, ours),
    }  # fmt: skip


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
        latencies = prepared(task, candidates)
        seconds = time.perf_counter() - start
    note(f"{name}/{system}: {len(candidates) / seconds:.2f} programs/s")
    return Pass(seconds, latencies)


# Of a task's candidates, in order: their latencies in seconds, None of those that failed.
Prepared = Callable[[Any, Sequence[Any]], list[float | None]]


@lru_cache(maxsize=1)
def local_target() -> dict[str, Any]:
    """This machine's CPU, one thread a program."""
    from tchub.hub.device.detect import detect_local

    return {"kind": "llvm", "mcpu": detect_local().mcpu, "num-cores": 1}


def _through(builder: Any, runner: Any, task: Any, candidates: Sequence[Any]) -> list[float | None]:
    """Measure as MetaSchedule's task scheduler does: build the batch, run what was built, collect."""
    from tchub.hub.search.measuring import RunnerMeasure
    from tvm.s_tir import Schedule
    from tvm.s_tir import meta_schedule as ms
    from tvm.s_tir.meta_schedule.arg_info import TensorInfo
    from tvm.target import Target

    arguments = [[TensorInfo(dtype, shape) for shape, dtype in candidate.args_info] for candidate in candidates]
    programs = [ms.MeasureCandidate(Schedule(c.mod), own) for c, own in zip(candidates, arguments, strict=True)]
    measure = RunnerMeasure(builder, runner, Target(local_target()))
    taken = [one for _, one in sorted(measure((task, program) for program in programs))]
    return [None if one.error else one.latency for one in taken]


@contextmanager
def stock() -> Iterator[Prepared]:
    """TVM's LocalBuilder and LocalRunner at their defaults, one thread a program."""
    from tvm.s_tir import meta_schedule as ms

    os.environ["TVM_NUM_THREADS"] = "1"
    builder, runner = ms.builder.LocalBuilder(), ms.runner.LocalRunner()
    yield partial(_through, builder, runner)


@contextmanager
def forked() -> Iterator[Prepared]:
    """tchub behind MetaSchedule's own classes."""
    from tchub.hub.device.meta_schedule import BuilderRunner

    with BuilderRunner() as both:
        both.wait()
        yield partial(_through, both.builder, both.runner)


@contextmanager
def ours() -> Iterator[Prepared]:
    """tchub's Measurer: outputs checked, the machine watched."""
    from tchub.hub.device.measure import Measurer

    with Measurer(local_target()) as measurer:
        measurer.wait()

        def measure(task: Any, candidates: Sequence[Any]) -> list[float | None]:
            measurer.refer(task.task_id, task.mod)
            by_key = {candidate.key: measurement for candidate, measurement in measurer.measure(candidates)}
            taken = [by_key[candidate.key] for candidate in candidates]
            return [None if measurement.error else measurement.latency for measurement in taken]

        yield measure


SYSTEMS: dict[str, Callable[[], AbstractContextManager[Prepared]]] = {"stock": stock, "ours": ours, "forked": forked}


@benchmark("measure", work_option("measure"))
def main(work: Path) -> Document:
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
    return summarise(rows, spreads), {"idle": rows, "spreads": spreads}, [SEED]
