"""Compiling random candidates for NVIDIA GPUs, without one: the share that compiles, and programs a second.

The same candidates of five operators are compiled to machine code for five architectures, in forked workers on all
cores. MetaSchedule's LocalBuilder, with the compiler that TVM calls, compiles the first of them for the rate.
What was compiled is in a journal: a second start goes on.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from functools import lru_cache
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import click

from scripts.benchmarks.common import CLOCK, Clock, Document, Journal, benchmark, lacking, note, work_option

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90")
OPERATORS = ("conv2d-3x3", "depthwise-3x3", "dense-square", "batch-matmul-scores", "softmax-rows")
# Candidates of an operator for the rates, which stock takes seconds for.
RATED, RATED_FOR, SEED, TIMEOUT = 24, "sm_80", 0, 120.0


def target_of(arch: str) -> dict[str, Any]:
    """A card's target: that of a T4, with another architecture."""
    from tchub.zoo.devices import get_device

    return {**get_device("t4").target, "arch": arch}


@lru_cache(1)
def candidates_of(operator: str, count: int) -> list[Any]:
    """So many random candidates of an operator, or all that there are."""
    from tchub.hub.networks.workloads import tasks_of
    from tchub.hub.search.candidates import random_candidates
    from tvm.target import Target

    target = Target(target_of(RATED_FOR))
    return random_candidates(tasks_of(operator, target)[0], target, count, SEED)


def compile_ours(candidates: Sequence[Any], arch: str) -> dict[str, Any]:
    """Seconds, and how many of the candidates compile in tchub's workers, which have started."""
    import tvm
    from tchub.hub.device.cuda_compile import find_compiler
    from tchub.hub.device.pool import JobResult, WorkerPool, Zygote, builder_setups

    zygote = Zygote()
    pool = WorkerPool(zygote, builder_setups())
    try:
        zygote.wait()
        compiler, target = find_compiler(), target_of(arch)
        with tempfile.TemporaryDirectory() as folder:
            started = time.perf_counter()
            futures: list[Future[JobResult]] = [
                pool.submit("build", (tvm.ir.save_json(c.mod), target, f"{folder}/{i}", compiler, "cubin"), TIMEOUT)
                for i, c in enumerate(candidates)
            ]
            results = [future.result() for future in futures]
            seconds = time.perf_counter() - started
    finally:
        pool.close()
        zygote.close()
    return _row(seconds, [None if one.error is None else f"{one.error}: {one.message}" for one in results]) | {
        "compiler": Path(compiler).name
    }


def compile_stock(candidates: Sequence[Any], arch: str) -> dict[str, Any]:
    """The same by TVM's LocalBuilder at its defaults, which starts its workers for each batch."""
    from tvm.s_tir import meta_schedule as ms
    from tvm.s_tir.meta_schedule.utils import remove_build_dir
    from tvm.target import Target

    builder, target = ms.builder.LocalBuilder(), Target(target_of(arch))
    started = time.perf_counter()
    results = builder.build([ms.builder.BuilderInput(c.mod, target) for c in candidates])
    seconds = time.perf_counter() - started
    for result in results:
        if result.artifact_path is not None:
            remove_build_dir(result.artifact_path)
    return _row(seconds, [result.error_msg for result in results])


def _row(seconds: float, errors: Sequence[str | None]) -> dict[str, Any]:
    failures = Counter(str(error).strip().splitlines()[-1][:160] for error in errors if error is not None)
    compiled = len(errors) - failures.total()
    return {"seconds": seconds, "programs": len(errors), "compiled": compiled, "failures": dict(failures)}


def summarise(shares: Sequence[dict[str, Any]], rates: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The share of candidates that compile, and programs a second of both systems, geometric mean over operators."""

    def rate(system: str) -> float:
        same = [row["compiled"] / row["seconds"] for row in rates if row["system"] == system]
        return geometric_mean(max(one, 1e-9) for one in same)

    programs = sum(row["programs"] for row in shares)
    ours, stock = rate("ours"), rate("stock")
    return {
        "programs": programs,
        "compiled_share": sum(row["compiled"] for row in shares) / programs,
        "ours_rate": ours,
        "stock_rate": stock,
        "rate_ratio": ours / stock,
        "stock_compiled_share": _share(rates, "stock"),
    }


def _share(rates: Sequence[dict[str, Any]], system: str) -> float:
    same = [row for row in rates if row["system"] == system]
    return sum(row["compiled"] for row in same) / max(1, sum(row["programs"] for row in same))


@benchmark(
    "gpu_compile",
    click.option("--programs", default=200, show_default=True, help="Candidates of an operator."),
    CLOCK,
    work_option("gpu_compile"),
)
def main(programs: int, clock: Clock, work: Path) -> Document:
    """Share of random candidates that compile for five architectures, and programs a second beside LocalBuilder."""
    journal = Journal(work / f"journal-{SEED}.jsonl")
    systems = {"ours": compile_ours, "stock": compile_stock}
    rates, shares = [], []
    for operator in OPERATORS:
        for system, compile_all in systems.items():
            key = {"operator": operator, "system": system, "rated": RATED}
            rates.append(journal.get(lambda: compile_all(candidates_of(operator, RATED), RATED_FOR), clock, **key))  # noqa: B023
            note(f"{operator}, {system}: {json.dumps(rates[-1])[:200]}")
    for operator in OPERATORS:
        for arch in ARCHITECTURES:
            key = {"operator": operator, "arch": arch, "of": programs}
            shares.append(journal.get(lambda: compile_ours(candidates_of(operator, programs), arch), clock, **key))  # noqa: B023
            note(f"{operator}, {arch}: {json.dumps(shares[-1])[:200]}")
    done, rated = [row for row in shares if row], [row for row in rates if row]
    first = [row | {"arch": RATED_FOR} for row in rated if row["system"] == "ours"]
    columns = ("operator", "arch", "programs", "compiled")
    details = {
        "architectures": [{name: row[name] for name in columns} for row in done or first],
        "rates": [
            {
                "operator": row["operator"],
                "system": row["system"],
                "programs a second": row["compiled"] / row["seconds"],
            }
            for row in rated
        ],
        "failures": dict(sum((Counter(row["failures"]) for row in [*done, *rated]), Counter())),
        "compiler": sorted({row["compiler"] for row in done or first}),
        "not_done": lacking(len(shares) - len(done), len(shares), "operators and architectures"),
    }
    return summarise(done or first, rated), details, [SEED]
