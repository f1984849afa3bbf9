"""The one measurer by which systems are compared.

Systems measure differently, so that a latency of one says nothing beside a latency of another. Every program that was
the best of its task for a while, of every run of the network, and every task's untuned program, is measured here
again: long, never cut short, in an order drawn by chance so that a drift of the machine favours nobody, outside every
clock. What was measured is kept in `WORK/judged.sqlite`, by machine, task and program, and never measured twice.

Then all final databases of one seed are compiled; these libraries take turns in one process with PyTorch eager and
`torch.compile`, one thread each, and every output is checked against PyTorch's.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

from scripts.benchmarks.common import note, write_text
from scripts.benchmarks.tuning.runs import LAYOUTS, THREADS, UNTUNED, Run, load_workload

# Changed with the way of judging: other figures are then other measurements.
_VERSION = 1
_TIMEOUT, _SECONDS_PER_SYSTEM = 1800.0, 6.0


def _config() -> Any:
    from tchub.hub.device.measure import MeasureConfig
    from tchub.hub.device.timing import TimingConfig

    timing = TimingConfig(
        min_repeat_seconds=0.01, min_repeats=5, max_repeats=15, spread=0.005, max_seconds=2.0, slow_factor=inf,
        good_factor=1.0,
    )  # fmt: skip
    return MeasureConfig(threads=THREADS, build_timeout=60.0, run_timeout=60.0, timing=timing, failure_rate=inf)


def open_judgements(work: Path, local: Any) -> Any:
    """Open the store of what was judged on this machine."""
    from tchub.hub.records.scope import MeasurementScope
    from tchub.hub.records.store import RunStore

    scope = MeasurementScope.of(f"{local.device.name}, judge {_VERSION}", local.cpu_model, local.target, THREADS)
    return RunStore(work / "judged.sqlite", scope)


def _programs(runs: Iterable[Run], tasks: dict[str, Any]) -> dict[tuple[str, str], str]:
    """Trace by (task, key) of every program to be judged, the untuned ones among them."""
    best = {(p["task"], p["key"]): p["trace"] for run in runs for p in run.programs() if p["task"] in tasks}
    return best | {(task_id, UNTUNED): "[[], []]" for task_id in tasks}


def _candidates(tasks: dict[str, Any], programs: dict[tuple[str, str], str], known: Any) -> Iterator[Any]:
    """Measurable forms of what is not known; each is made when the measurer asks for it."""
    from tchub.hub.adaptation.pool import PoolEntry, replay

    missing = [key for key in sorted(programs) if (before := known.get(*key)) is None or before.error is not None]
    random.Random(0).shuffle(missing)
    note(f"judge: {len(missing)} of {len(programs)} programs to measure")
    for task_id, key in missing:
        entry = PoolEntry(0, key, programs[task_id, key], "judge")
        yield replace(replay(tasks[task_id], entry), key=key)


def judge(work: Path, network: str, runs: list[Run]) -> None:
    """Measure what is not in the store; for a process of its own."""
    from tchub.hub.device.measure import Measurer

    loaded = [load_workload(network, layout) for layout in sorted({LAYOUTS[run.system] for run in runs})]
    tasks = {task.task_id: task for work in loaded for task in work.tasks}
    local = loaded[0].local
    with open_judgements(work, local) as store, Measurer(local.target, _config()) as measurer:
        for candidate, measurement in measurer.measure(_candidates(tasks, _programs(runs, tasks), store)):
            store.put(candidate, measurement)
            if measurement.error:
                note(f"{network}: {measurement.error} of {candidate.task_id} {candidate.key}: {measurement.message}")


def latencies(work: Path, local: Any) -> dict[tuple[str, str], float]:
    """Seconds by (task, key) of every program that was judged and ran."""
    with open_judgements(work, local) as store:
        programs = store.programs(traces=False)
        return {(p.task_id, p.key): p.latency for p in programs if p.measurement.error is None}


def _better_untuned(run: Run, judged: dict[tuple[str, str], float]) -> set[str]:
    """Tasks whose untuned program is faster than the system's choice, which are then compiled as they are."""
    last = {program["task"]: program["key"] for program in run.programs()}  # each was better than the one before
    judged = defaultdict(lambda: inf, judged)
    return {task_id for task_id, key in last.items() if judged[task_id, UNTUNED] < judged[task_id, key]}


def time_network(path: Path, network: str, runs: list[Run]) -> None:
    """Compile each run's database, compare, and write seconds by system and what failed; for a process of its own."""
    from tchub.hub.networks.latency import compare
    from tchub.hub.networks.library import build_library
    from tchub.hub.networks.workloads import load_network
    from tchub.hub.records.database import best_programs
    from tvm.s_tir import meta_schedule as ms

    loaded = {layout: load_workload(network, layout) for layout in {LAYOUTS[run.system] for run in runs}}
    first = next(iter(loaded.values()))
    judged = latencies(runs[0].work, first.local)
    with tempfile.TemporaryDirectory(prefix="tchub-bench-") as folder:
        libraries = {
            f"{UNTUNED}, {layout}": Path(build_library(work.mod, work.target, None, Path(folder, f"{layout}.so")).path)
            for layout, work in loaded.items()
        }
        for run in runs:
            work = loaded[LAYOUTS[run.system]]
            stored = ms.database.JSONDatabase(work_dir=str(run.folder / "database"))
            database = best_programs(stored, work.tasks, _better_untuned(run, judged))
            built = build_library(work.mod, work.target, database, Path(folder, f"{run.system}.so"))
            libraries[run.system] = Path(built.path)
        seconds = _SECONDS_PER_SYSTEM * (len(libraries) + 2)
        compared = compare(
            load_network(network), libraries, threads=THREADS, max_seconds=seconds, timeout=_TIMEOUT,
            rivals=["torch.compile"],
        )  # fmt: skip
    facts = {
        "latency": {name: latency.as_dict() for name, latency in compared.latencies.items()},
        "checks": {name: check.as_dict() for name, check in compared.checks.items()},
        "errors": compared.errors,
    }
    write_text(path, json.dumps(facts))
