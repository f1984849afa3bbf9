"""The one measurer by which systems are compared.

    python -m scripts.benchmarks.tuning.judge WORK NETWORK     # `run.py` starts it

Systems measure differently, so that a latency of one says nothing beside a latency of another. Every program that was
the best of its task for a while, of every run of the network, and every task's untuned program, is measured here
again: long, never cut short, in an order drawn by chance so that a drift of the machine favours nobody, outside every
clock. What was measured is kept in `WORK/judged.sqlite`, by machine, task and program, and never measured twice.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from scripts.benchmarks.tuning.runs import SYSTEMS, THREADS, UNTUNED, Run, note

_NOTE_EVERY = 64
# Changed with the way of judging: other figures are then other measurements.
_VERSION = 1


def _timing() -> Any:
    from tchub.hub.device.timing import TimingConfig

    return TimingConfig(
        min_repeat_seconds=0.01,
        min_repeats=5,
        max_repeats=15,
        spread=0.005,
        max_seconds=2.0,
        slow_factor=float("inf"),
        good_factor=1.0,
    )


def _config() -> Any:
    from tchub.hub.device.measurement import MeasureConfig

    return MeasureConfig(threads=THREADS, build_timeout=60.0, run_timeout=60.0, timing=_timing(), failure_rate=1.0)


def open_judgements(work: Path, local: Any) -> Any:
    """Open the store of what was judged on this machine."""
    from tchub.hub.records.scope import MeasurementScope
    from tchub.hub.records.store import RunStore

    scope = MeasurementScope.of(f"{local.device.name}, judge {_VERSION}", local.cpu_model, local.target, THREADS)
    return RunStore(work / "judged.sqlite", scope)


def wanted(runs: Iterable[Run]) -> dict[tuple[str, str], str]:
    """Trace by (task, key) of every program to be judged."""
    return {(p["task"], p["key"]): p["trace"] for run in runs if run.row() for p in run.programs()}


def _candidates(tasks: dict[str, Any], programs: dict[tuple[str, str], str], known: Any) -> Iterator[Any]:
    """Measurable forms of what is not known; each is made when the measurer asks for it."""
    from tchub.hub.adaptation.pool import PoolEntry, replay

    programs = programs | {(task_id, UNTUNED): "[[], []]" for task_id in tasks}
    missing = [place for place in sorted(programs) if place[0] in tasks and _unknown(known.get(*place))]
    random.Random(0).shuffle(missing)
    note(f"judge: {len(missing)} of {len(programs)} programs to measure")
    for task_id, key in missing:
        entry = PoolEntry(0, key, programs[task_id, key], "judge")
        yield replace(replay(tasks[task_id], entry), key=key)


def _unknown(found: Any) -> bool:
    """Whether a program is to be measured: also again, where it failed in an earlier call."""
    return found is None or found.error is not None


def judge(work: Path, network: str, runs: list[Run]) -> None:
    """Measure what is not in the journal."""
    from tchub.hub.device.measure import Measurer

    from scripts.benchmarks.tuning.rivals import load_workload

    loaded = [load_workload(network, layout) for layout in sorted({SYSTEMS[run.system].layout for run in runs})]
    tasks = {task.task_id: task for work in loaded for task in work.tasks}
    local = loaded[0].local
    start = time.monotonic()
    with open_judgements(work, local) as journal, Measurer(local.target, _config()) as measurer:
        asked = _candidates(tasks, wanted(runs), journal)
        for count, (candidate, found) in enumerate(measurer.measure(asked), 1):
            journal.put(candidate, found)
            if found.error:
                note(f"judge: {network}: {found.error} of {candidate.task_id} {candidate.key}: {found.message}")
            if count % _NOTE_EVERY == 0:
                note(f"judge: {network}: {count} programs in {time.monotonic() - start:.0f} s")


def latencies(work: Path, local: Any) -> dict[tuple[str, str], float]:
    """Seconds by (task, key) of every program that was judged and ran."""
    with open_judgements(work, local) as journal:
        return {
            (entry.task_id, entry.key): entry.measurement.latency
            for entry in journal.entries()
            if entry.measurement.error is None
        }


def main() -> None:
    """Judge the runs, given as `Run.arguments`, of a network."""
    judge(Path(sys.argv[1]), sys.argv[2], [Run.from_arguments(text) for text in sys.argv[3:]])


if __name__ == "__main__":
    main()
