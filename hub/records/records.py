"""Measured programs in MetaSchedule's database: opening it, the best of each task, records as results and trials."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvm.s_tir import meta_schedule as ms

from ...zoo.files import drop_torn_line
from ..device.candidate import trace_json
from .record_lines import FAILED_SECONDS, RECORDS, WORKLOADS
from .record_store import RecordStore
from .trials import Trial, latency_of

if TYPE_CHECKING:
    from ..networks.tasks import TuningTask


def open_database(folder: Path) -> Any:
    """The `RecordStore` of `folder`, made if missing, mended if a killed process tore a line.

    Raises:
        RunStateError: a line that is not the last one is damaged.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in (WORKLOADS, RECORDS):
        drop_torn_line(folder / name)
    return RecordStore(folder)


def best_programs(database: Any, tasks: Sequence[TuningTask], without: Container[str] = ()) -> Any:
    """A database in memory with the best program of each task.

    Args:
        without: ids of tasks to leave out, so that they are compiled as they are.
    """
    kept = ms.database.MemoryDatabase()
    for task in tasks:
        if task.task_id in without:
            continue
        for record in database.get_top_k(database.commit_workload(task.mod), 1):
            workload = kept.commit_workload(task.mod)
            kept.commit_tuning_record(
                ms.database.TuningRecord(record.trace, workload, record.run_secs, record.target, record.args_info)
            )
    return kept


def programs_of(database: Any, mod: Any) -> Iterator[tuple[list[Any], tuple[float, ...]]]:
    """Trace `[instructions, decisions]` and seconds of each program of a module in any MetaSchedule database."""
    if isinstance(database, RecordStore):
        store: Any = database
        yield from ((program.trace, program.seconds) for program in store.programs(mod))
        return
    workload = database.commit_workload(mod)
    for record in database.get_all_tuning_records():
        if record.workload.same_as(workload):
            yield trace_json(record.trace), tuple(float(s) for s in record.run_secs or ())


def as_result(seconds: Iterable[Any] | None) -> Any:
    """The seconds of a database record as a MetaSchedule `RunnerResult`."""
    times = [float(s) for s in seconds or ()]
    if not times or min(times) >= FAILED_SECONDS:
        return ms.runner.RunnerResult(None, "failed in an earlier run")
    return ms.runner.RunnerResult(times, None)


def make_trial(task: str, at: float, result: Any, score: float | None, kind: str, cost: float) -> Trial:
    """A MetaSchedule `RunnerResult` as a line of the log."""
    error = str(result.error_msg) if result.error_msg is not None else None
    times = tuple(float(s) for s in result.run_secs or ()) if error is None else ()
    latency = latency_of(times)
    if latency is None and error is None:
        error = "no valid time"
    return Trial(task, at, times, latency, score, _first_line(error), kind, cost)


def mark(trial: Trial) -> str:
    """What a trial and its database record have in common: the median, to six digits."""
    return "failed" if trial.latency is None else f"{trial.latency:.5e}"


def _first_line(error: str | None) -> str | None:
    """The line that says what went wrong: a Python traceback's last, else the first."""
    if error is None:
        return None
    lines = [line.strip() for line in error.strip().splitlines() if line.strip()]
    if not lines:
        return "unknown error"
    return lines[-1][:300] if "Traceback" in error else lines[0][:300]
