"""Compiling random candidates for NVIDIA GPUs, without one: the share that compiles, and programs a second.

Candidates of operators, scalar and of tensor cores, are compiled to machine code for five architectures, in forked
workers on all cores. MetaSchedule's LocalBuilder, with the compiler that TVM calls, compiles some of them for the rate.
What was compiled is in a journal, in parts: a second start goes on.
"""

import json
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from scripts.benchmarks.common import CLOCK, Clock, Document, Journal, benchmark, kept, lacking, note, work_option

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90")
OPERATORS = ("conv2d-3x3", "depthwise-3x3", "dense-square", "batch-matmul-scores", "softmax-rows")
TENSOR_CORES = ("resnet-18:conv2d", "bert-mini-64:matmul", "bert-mini-64:batch_matmul")  # their heaviest ones
KINDS = [*((operator, "float32") for operator in OPERATORS), *((operator, "float16") for operator in TENSOR_CORES)]
# Candidates of an operator for the rates, which stock takes seconds for.
RATED, RATED_FOR, SEED, TIMEOUT = 24, "sm_80", 0, 120.0
DRAWN, PART = 25, 5  # candidates that are drawn, and compiled, together
DRAWS = 5


def target_of(arch: str) -> dict[str, Any]:
    """A card's target: that of a T4, with another architecture."""
    from tchub.zoo.devices import get_device

    return {**get_device("t4").target, "arch": arch}


@lru_cache(1)
def task_of(operator: str, precision: str, space: str) -> Any:
    """An operator, or the heaviest one of its class in a network, on an architecture."""
    from tchub.hub.networks.workloads import tasks_of
    from tvm.target import Target

    workload, _, op = operator.partition(":")
    tasks = tasks_of(workload, Target(target_of(space)), precision=precision)
    return next(task for task in tasks if op in ("", task.op))


def drawn(work: Path, operator: str, precision: str, arch: str, draw: int) -> list[Any]:
    """Random candidates of an operator: key and module of each, as the folder keeps them.

    Those of an architecture without `cp.async` are its own.
    """
    from tchub.hub.search.candidates import random_candidates
    from tvm.ir import save_json
    from tvm.target import Target

    space = arch if arch == "sm_75" else RATED_FOR

    def make() -> list[Any]:
        task, target = task_of(operator, precision, space), Target(target_of(space))
        return [[c.key, str(save_json(c.mod))] for c in random_candidates(task, target, DRAWN, SEED + draw)]

    return kept(work / f"{operator}-{precision}-{space}-{draw}.json", make)


def compile_ours(candidates: Sequence[Any], arch: str) -> dict[str, Any]:
    """Seconds, and how many of the candidates compile in tchub's workers, which have started."""
    from tchub.hub.device.build_jobs import build
    from tchub.hub.device.cuda_compile import find_compiler
    from tchub.hub.device.pool import JobResult, WorkerPool, Zygote, builder_setups

    with closing(Zygote()) as zygote, closing(WorkerPool(zygote, builder_setups())) as pool:
        zygote.wait()
        compiler, target = find_compiler(), target_of(arch)
        with tempfile.TemporaryDirectory() as folder:
            started = time.perf_counter()
            futures: list[Future[JobResult]] = [
                pool.submit(build, (mod, target, f"{folder}/{i}", compiler, "cubin"), TIMEOUT)
                for i, (_, mod) in enumerate(candidates)
            ]
            results = [future.result() for future in futures]
            seconds = time.perf_counter() - started
    errors = [None if one.error is None else f"{one.error}: {one.message}" for one in results]
    return _row(seconds, errors) | {"compiler": Path(compiler).name, "keys": [key for key, _ in candidates]}


def compile_stock(candidates: Sequence[Any], arch: str) -> dict[str, Any]:
    """The same by TVM's LocalBuilder at its defaults, which starts its workers for each batch."""
    from tvm.ir import load_json
    from tvm.s_tir import meta_schedule as ms
    from tvm.s_tir.meta_schedule.utils import remove_build_dir
    from tvm.target import Target

    builder, target = ms.builder.LocalBuilder(), Target(target_of(arch))
    inputs = [ms.builder.BuilderInput(load_json(text), target) for _, text in candidates]
    started = time.perf_counter()
    results = builder.build(inputs)
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
    """The share of programs that compile, and programs a second of both systems, geometric mean over operators."""

    def rate(system: str) -> float:
        return geometric_mean(max(row["compiled"] / row["seconds"], 1e-9) for row in rates if row["system"] == system)

    programs, others = sum(row["programs"] for row in shares), [row for row in rates if row["system"] == "stock"]
    return {
        "candidates": len({(row["operator"], row["precision"], key) for row in shares for key in row["keys"]}),
        "programs": programs,
        "compiled_share": sum(row["compiled"] for row in shares) / max(1, programs),
        "ours_rate": rate("ours"),
        "stock_rate": rate("stock"),
        "rate_ratio": rate("ours") / rate("stock"),
        "stock_compiled_share": sum(row["compiled"] for row in others) / max(1, sum(row["programs"] for row in others)),
    }


def parts_of(draws: int) -> list[tuple[str, str, str, int]]:
    """(operator, precision, architecture, part), those first with which each candidate is compiled for one of them."""
    each = len(ARCHITECTURES)
    return [
        (*kind, arch, draw * each + (number + shift) % each)
        for shift in range(each)
        for draw in range(draws)
        for kind in KINDS
        for number, arch in enumerate(ARCHITECTURES)
    ]


def _table(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Programs by operator, precision and architecture."""
    counts: dict[tuple[str, str, str], Counter[str]] = {}
    for row in rows:
        same = counts.setdefault((row["operator"], row["precision"], row["arch"]), Counter())
        same.update({name: row[name] for name in ("programs", "compiled")})
    return [{"operator": op, "precision": p, "arch": a, **counts[op, p, a]} for op, p, a in sorted(counts)]


@benchmark("gpu_compile", CLOCK, work_option("gpu_compile"))
def main(clock: Clock, work: Path) -> Document:
    """Share of random candidates that compile for five architectures, and programs a second beside LocalBuilder."""
    journal = Journal(work / f"journal-{SEED}.jsonl")
    shares, rates = [], []
    for operator in OPERATORS:
        for system, compile_all in {"ours": compile_ours, "stock": compile_stock}.items():
            key = {"operator": operator, "system": system, "rated": RATED}
            given = work, operator, "float32", RATED_FOR, 0
            rates.append(journal.get(lambda: compile_all(drawn(*given)[:RATED], RATED_FOR), clock, **key))  # noqa: B023
            note(f"{operator}, {system}: {json.dumps(rates[-1])[:200]}")
    for operator, precision, arch, part in (planned := parts_of(DRAWS)):
        key = {"operator": operator, "precision": precision, "arch": arch, "part": part}
        draw, slot = divmod(part, DRAWN // PART)
        given, own = (work, operator, precision, arch, draw), slice(slot * PART, (slot + 1) * PART)
        shares.append(journal.get(lambda: compile_ours(drawn(*given)[own], arch), clock, **key))  # noqa: B023
        note(f"{key}: {json.dumps(shares[-1])[:200]}")
    done, rated = [row for row in shares if row], [row for row in rates if row]
    details = {
        "architectures": _table(done),
        "rates": [
            {name: row[name] for name in ("operator", "system")}
            | {"programs a second": row["compiled"] / row["seconds"]}
            for row in rated
        ],
        "failures": dict(sum((Counter(row["failures"]) for row in [*done, *rated]), Counter())),
        "compiler": sorted({row["compiler"] for row in done}),
        "not_done": lacking(len(planned) - len(done), len(planned), f"parts of {PART} candidates for an architecture"),
    }
    return summarise(done, rated), details, [SEED]
