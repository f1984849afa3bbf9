"""An old Ansor log as a MetaSchedule database of today's TVM."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..importers.ansor import read_ansor
from ..importers.records import Broken, ImportContext, LogEntry
from .ansor import replay
from .operators import ReplayError, workload
from .structure import verify_structure

if TYPE_CHECKING:
    from .. import Task

WORKLOADS, RECORDS = "database_workload.json", "database_tuning_record.json"


@dataclass(slots=True)
class ReplayReport:
    """Count of a replayed log.

    Attributes:
        tried, replayed: programs by operator: those with a time that a replay was tried of, and that have one.
        reasons: programs that could not be replayed, by (operator, reason of the `ReplayError`).
        examples: for every reason one message.
        untimed: programs that failed when they were measured; not tried.
        over_limit: programs beyond the limit of their task; not tried.
        broken: lines that could not be read, by kind.
    """

    tried: Counter[str] = field(default_factory=Counter)
    replayed: Counter[str] = field(default_factory=Counter)
    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    untimed: int = 0
    over_limit: int = 0
    broken: Counter[str] = field(default_factory=Counter)

    @property
    def share(self) -> float:
        """Return the share of the programs tried that were replayed; NaN when there were none."""
        return self.replayed.total() / self.tried.total() if self.tried else float("nan")

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        operators = {op: {"replayed": self.replayed[op], "of": n} for op, n in sorted(self.tried.items())}
        reasons = [
            {"op": op, "reason": reason, "programs": n, "example": self.examples[reason]}
            for (op, reason), n in self.reasons.most_common()
        ]
        counts = {"untimed": self.untimed, "over_limit": self.over_limit, "broken": dict(self.broken)}
        return {"share": self.share, "operators": operators, "reasons": reasons} | counts


def replay_log(
    log: Path | str,
    folder: Path | str,
    target: dict[str, Any] | str | None = None,
    limit_per_task: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> ReplayReport:
    """Replay a log, checks every program against its record, and writes a MetaSchedule database.

    Args:
        log: a file or folder of Ansor records, packed or not.
        folder: the database goes here, into `database_workload.json` and `database_tuning_record.json`; records
            are added to those that are there.
        target: TVM target of the database's records; None takes the kind of the log's own.
        limit_per_task: how many programs of a task are tried, in the log's order.
        progress: called with 1 after each program.

    """
    from tvm.s_tir import meta_schedule as ms

    Path(folder).mkdir(parents=True, exist_ok=True)
    database = ms.database.JSONDatabase(str(Path(folder) / WORKLOADS), str(Path(folder) / RECORDS))
    report, seen = ReplayReport(), Counter[str]()
    # A database may hold records of several devices: a record names its target.
    for entry in read_ansor(log, ImportContext(device="unknown")):
        if isinstance(entry, Broken):
            report.broken[entry.kind] += 1
        elif not entry.program.valid:
            report.untimed += 1
        elif limit_per_task is not None and seen[entry.task.task_id] >= limit_per_task:
            report.over_limit += 1
        else:
            seen[entry.task.task_id] += 1
            _add(database, entry, target, report)
            if progress:
                progress(1)
    return report


def _add(database: Any, entry: LogEntry, target: dict[str, Any] | str | None, report: ReplayReport) -> None:
    op = entry.task.op
    report.tried[op] += 1
    try:
        schedule = _checked(entry.task, json.loads(entry.program.trace))
    except ReplayError as error:
        report.reasons[op, error.reason] += 1
        report.examples.setdefault(error.reason, error.message)
        return
    _commit(database, schedule, entry, _target(json.dumps(target) if target else entry.program.target))
    report.replayed[op] += 1


def _checked(task: Task, steps: list[Any]) -> Any:
    program = workload(task.workload)
    replayed = replay(program, steps)
    verify_structure(program, steps, replayed)
    return replayed.schedule


def _commit(database: Any, schedule: Any, entry: LogEntry, target: Any) -> None:
    from tvm.s_tir import meta_schedule as ms

    mod = workload(entry.task.workload).mod
    arguments = ms.arg_info.ArgInfo.from_entry_func(mod, remove_preproc=False)
    committed = database.commit_workload(mod)
    times = list(entry.program.latencies)
    record = ms.database.TuningRecord(schedule.trace, committed, times, target, arguments)
    database.commit_tuning_record(record)


@lru_cache(64)
def _target(text: str) -> Any:
    """A TVM target. Of an older TVM's text only the kind is taken: its attributes have changed since."""
    from tvm.target import Target

    parsed = json.loads(text)
    return Target(parsed if isinstance(parsed, dict) or not parsed.count(" -") else parsed.split()[0])
