"""What one process of each engine manages, and so how many devices it can serve.

    python -m scripts.benchmarks scale --json

Journal: one SQLite transaction a measurement. Merge: shards of a made-up collection to one corpus. Tracker: TVM's RPC
tracker asked for its free server, a session opened and closed, again and again; a library uploaded. Programs: real
ones, built and run here. Each stage runs in a process of its own; what the figures come to at a thousand devices is
shown by docs/remote.md, whose table `python -m scripts.benchmarks.report` writes.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import click

from scripts.benchmarks.common import Document, benchmark
from scripts.benchmarks.corpus import measured

# Measurements to write, sessions of the tracker, programs to build and run.
SIZES = {"journal": 50_000, "shards": 50_000, "merge": 50_000, "tracker": 200, "programs": 60}
SHARDS, TASKS, TRACE_BYTES = 8, 64, 4000
# Who ask the tracker at once: a question alone is mostly waiting.
CLIENTS = 32
# Operators whose programs are built and run: what a network is made of.
OPERATORS = ("conv2d-3x3", "depthwise-3x3", "dense-square", "batch-matmul-scores", "softmax-rows")
META = {
    "device": "made-up", "family": "made-up", "cpu_model": "made-up", "target": {"kind": "llvm", "num-cores": 1},
    "tvm_version": "none", "licence": "CC0-1.0",
}  # fmt: skip


def _trace(rng: random.Random) -> str:
    """As long as a real one, and as alike: the instructions of a design space, and decisions of its own."""
    decisions = json.dumps([[rng.choice((1, 2, 4, 8)) for _ in range(4)] for _ in range(12)])
    return json.dumps(["SamplePerfectTile"] * (TRACE_BYTES // 21)) + decisions


def journal(folder: Path, programs: int) -> dict[str, Any]:
    """Write measurements as a collection does."""
    from tchub.hub.device.measure import Measurement
    from tchub.hub.records.scope import MeasurementScope
    from tchub.hub.records.store import FILE, RunStore

    rng = random.Random(0)
    scope = MeasurementScope(META["device"], META["cpu_model"], json.dumps(META["target"]), 1, META["tvm_version"])
    with RunStore(folder / FILE, scope) as file:
        for number in range(programs):
            named = SimpleNamespace(
                task_id=f"{number % TASKS:016x}", key=f"{number:016x}", strategy="random", trace=_trace(rng),
                args_info=(),
            )  # fmt: skip
            file.put(named, Measurement((1e-3, 1.1e-3, 1e-3), None, None, 0.5, 0.5, time.time()))  # pyright: ignore[reportArgumentType]
    return {"programs": programs, "bytes_per_program": (folder / FILE).stat().st_size / programs}


def _programs(shard: int, programs: int) -> Iterator[Any]:
    from tchub.zoo.corpus import Program

    rng = random.Random(shard)
    for task in range(shard, TASKS, SHARDS):
        for number in range(programs // TASKS):
            times = (1e-3 * (1 + rng.random()),)
            facts = (f"{task:016x}", f"{number:016x}", _trace(rng), "random", times, times[0], "made-up", "llvm")
            yield Program(*facts, measured_at=float(number))


def shards(folder: Path, programs: int) -> dict[str, Any]:
    """Write what the machines of a cluster would bring."""
    from tchub.zoo.corpus import Task, write_corpus

    for shard in range(SHARDS):
        tasks = [Task(f"{t:016x}", f"task{t}", "matmul", 1.0, f"{t}") for t in range(shard, TASKS, SHARDS)]
        write_corpus(folder / f"shard-{shard}", META, tasks, _programs(shard, programs))
    return {"programs": programs // TASKS * TASKS}


def merge(folder: Path, _: int) -> dict[str, Any]:
    """`tchub corpus import`."""
    from tchub.zoo.corpus import merge_corpora

    merged = merge_corpora(folder / "whole", [folder / f"shard-{shard}" for shard in range(SHARDS)])
    return {"programs": merged.corpus.meta["programs"]}


def tracker(_: Path, cycles: int) -> dict[str, Any]:
    """Reserve a server, open a session, close it; then upload."""
    from tchub.hub.device.rpc_farm import Farm
    from tchub.hub.device.rpc_tracker import TrackerClient
    from tvm import rpc

    library = bytearray(random.Random(0).randbytes(4 << 20))
    asked, sessions = [], []
    with Farm(servers=1) as farm:
        client = TrackerClient(farm.address)
        for _ in range(cycles):
            start = time.perf_counter()
            offer = client.request(60.0)
            if offer is None:
                raise click.ClickException("the tracker offered no server for a minute")
            asked.append(time.perf_counter() - start)
            remote = rpc.connect(*offer[0], offer[1])
            sessions.append(time.perf_counter() - start)
            del remote
        start = time.perf_counter()
        with ThreadPoolExecutor(CLIENTS) as clients:
            questions = len(list(clients.map(lambda _: client.servers(), range(20 * CLIENTS))))
        answered = questions / (time.perf_counter() - start)
        offer = client.request(60.0)
        assert offer is not None
        remote = rpc.connect(*offer[0], offer[1])
        upload = _seconds_each(lambda: remote.upload(library, "library.so"), 8)
    return {
        "programs": cycles, "request_ms": 1e3 * median(asked), "session_ms": 1e3 * median(sessions),
        "questions_per_second": answered, "upload_mib_per_second": len(library) / 2**20 / upload,
    }  # fmt: skip


def _seconds_each(call: Any, times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times


def build_and_run(_: Path, count: int) -> dict[str, Any]:
    """Build and run real programs on this machine."""
    import tvm
    from tchub.hub.device.detect import detect_local
    from tchub.hub.device.measure import MeasureConfig, Measurer
    from tchub.hub.device.meta_schedule import make_builder_runner
    from tchub.hub.networks.workloads import tasks_of
    from tchub.hub.search.candidates import random_candidates
    from tvm.s_tir.meta_schedule.builder import BuilderInput

    local = detect_local(1)
    target = tvm.target.Target(local.target)
    tasks = [task for name in OPERATORS for task in tasks_of(name, target)]
    drawn = [c for task in tasks for c in random_candidates(task, target, max(1, count // len(tasks)), 0)]
    with Measurer(local.target, MeasureConfig()) as measurer:
        ran = [m for _, m in measurer.measure(drawn) if m.error is None]
    with make_builder_runner() as workers:
        built = workers.builder.build([BuilderInput(c.mod, target) for c in drawn[:: max(1, len(drawn) // 8)]])
        sizes = [Path(str(b.artifact_path)).stat().st_size for b in built if b.error_msg is None]
    return {
        "programs": len(drawn), "failed": len(drawn) - len(ran),
        "build_seconds": median(m.build_seconds for m in ran), "run_seconds": median(m.run_seconds for m in ran),
        "library_kib": median(sizes) / 1024,
    }  # fmt: skip


STAGES = {"journal": journal, "shards": shards, "merge": merge, "tracker": tracker, "programs": build_and_run}


@benchmark("scale")
def main() -> Document:
    """Measure every engine and write docs/benchmarks/scale.json."""
    with tempfile.TemporaryDirectory(prefix="tchub-scale-") as folder:
        rows = {name: measured(stage, Path(folder), SIZES[name]) for name, stage in STAGES.items()}
    summary = {
        "journal_writes_per_second": rows["journal"]["programs_per_second"],
        "merge_programs_per_second": rows["merge"]["programs_per_second"],
        "merge_peak_resident_gib": rows["merge"]["peak_resident_gib"],
        **{name: rows["tracker"][name] for name in ("request_ms", "session_ms")},
        **{f"tracker_{n}": rows["tracker"][n] for n in ("questions_per_second", "upload_mib_per_second")},
        **{name: rows["programs"][name] for name in ("build_seconds", "run_seconds", "library_kib")},
    }
    return summary, rows, [0]
