"""End-to-end latency of a network as each system's final database compiles it, PyTorch's two ways beside them.

    python -m scripts.benchmarks.tuning.latency OUT NETWORK RUN...     # `run.py` starts it

All libraries of one seed take turns in one process with PyTorch eager and `torch.compile`, one thread each, and every
output is checked against PyTorch's. The result is `OUT`: seconds by system, and what failed.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from scripts.benchmarks.tuning.runs import SYSTEMS, THREADS, UNTUNED, Run, note, write_json

_TIMEOUT = 1800.0
_SECONDS_PER_SYSTEM = 6.0


def _better_untuned(run: Run, judged: dict[tuple[str, str], float]) -> set[str]:
    """Tasks whose untuned program is faster than the system's choice, which are then compiled as they are."""
    last = {program["task"]: program["key"] for program in run.programs()}  # each was better than the one before
    infinite = float("inf")
    return {
        task_id
        for task_id, key in last.items()
        if judged.get((task_id, UNTUNED), infinite) < judged.get((task_id, key), infinite)
    }


def time_network(network: str, runs: list[Run]) -> dict[str, Any]:
    """Compile each run's database, compare; see the module."""
    from tchub.hub.networks.latency import compare
    from tchub.hub.networks.library import build_library
    from tchub.hub.networks.workloads import load_network
    from tchub.hub.records.database import best_programs
    from tvm.s_tir import meta_schedule as ms

    from scripts.benchmarks.tuning.judge import latencies
    from scripts.benchmarks.tuning.rivals import load_workload

    loaded = {layout: load_workload(network, layout) for layout in {SYSTEMS[run.system].layout for run in runs}}
    first = next(iter(loaded.values()))
    judged = latencies(runs[0].work, first.local)
    with tempfile.TemporaryDirectory(prefix="tchub-bench-") as folder:
        libraries = {
            f"{UNTUNED}, {layout}": Path(build_library(work.mod, work.target, None, Path(folder, f"{layout}.so")).path)
            for layout, work in loaded.items()
        }
        for run in runs:
            work = loaded[SYSTEMS[run.system].layout]
            note(f"latency: {run.label}: compile")
            stored = ms.database.JSONDatabase(work_dir=str(run.folder / "database"))
            database = best_programs(stored, work.tasks, _better_untuned(run, judged))
            built = build_library(work.mod, work.target, database, Path(folder, f"{run.system}.so"))
            libraries[run.system] = Path(built.path)
        note(f"latency: {network}: {len(libraries)} libraries, PyTorch eager and torch.compile take turns")
        seconds = _SECONDS_PER_SYSTEM * (len(libraries) + 2)
        compared = compare(
            load_network(network),
            libraries,
            threads=THREADS,
            max_seconds=seconds,
            timeout=_TIMEOUT,
            rivals=["torch.compile"],
        )
    return {
        "latency": {name: latency.as_dict() for name, latency in compared.latencies.items()},
        "checks": {name: check.as_dict() for name, check in compared.checks.items()},
        "errors": compared.errors,
    }


def main() -> None:
    """Time the runs, given as `Run.arguments`."""
    runs = [Run.from_arguments(text) for text in sys.argv[3:]]
    write_json(Path(sys.argv[1]), time_network(sys.argv[2], runs))


if __name__ == "__main__":
    main()
