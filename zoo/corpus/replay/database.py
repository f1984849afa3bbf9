"""An old Ansor log as a MetaSchedule database of today's TVM."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..importers.ansor import read_ansor
from ..importers.records import DATABASE, Broken, ImportContext, LogEntry
from .ansor import replay
from .operators import ReplayError, workload


@dataclass(slots=True)
class ReplayReport:
    """Counts of a replayed log.

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

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form; `share` is that of the programs tried that were replayed."""
        return {
            "share": self.replayed.total() / self.tried.total() if self.tried else float("nan"),
            "operators": {op: {"replayed": self.replayed[op], "of": n} for op, n in sorted(self.tried.items())},
            "reasons": [
                {"op": op, "reason": reason, "programs": n, "example": self.examples[reason]}
                for (op, reason), n in self.reasons.most_common()
            ],
            "untimed": self.untimed,
            "over_limit": self.over_limit,
            "broken": dict(self.broken),
        }


def replay_log(
    log: Path | str,
    folder: Path | str,
    target: dict[str, Any] | str | None = None,
    limit_per_task: int | None = None,
) -> ReplayReport:
    """Replay a log, check every program against its record, and write a MetaSchedule database.

    Args:
        log: a file or folder of Ansor records, packed or not.
        folder: the database goes here, into `database_workload.json` and `database_tuning_record.json`; records
            are added to those that are there.
        target: TVM target of the database's records; None takes the kind of the log's own.
        limit_per_task: how many programs of a task are tried, in the log's order.
    """
    from tvm.s_tir import meta_schedule as ms

    Path(folder).mkdir(parents=True, exist_ok=True)
    records, workloads = (str(Path(folder) / name) for name in DATABASE)
    database = ms.database.JSONDatabase(workloads, records)
    report, tried = ReplayReport(), Counter[str]()
    # A database may hold records of several devices: a record names its target.
    for entry in read_ansor(log, ImportContext(device="unknown")):
        if isinstance(entry, Broken):
            report.broken[entry.kind] += 1
        elif not entry.program.valid:
            report.untimed += 1
        elif limit_per_task is not None and tried[entry.task.task_id] >= limit_per_task:
            report.over_limit += 1
        else:
            tried[entry.task.task_id] += 1
            _add(database, entry, json.dumps(target) if target else entry.program.target, report)
    return report


def _add(database: Any, entry: LogEntry, target: str, report: ReplayReport) -> None:
    from tvm.s_tir import meta_schedule as ms

    op, steps = entry.task.op, json.loads(entry.program.trace)
    report.tried[op] += 1
    try:
        task = workload(entry.task.workload)
        schedule = replay(task, steps)
    except ReplayError as error:
        report.reasons[op, error.reason] += 1
        report.examples.setdefault(error.reason, error.message)
        return
    arguments = ms.arg_info.ArgInfo.from_entry_func(task.mod, remove_preproc=False)
    database.commit_tuning_record(
        ms.database.TuningRecord(
            schedule.trace,
            database.commit_workload(task.mod),
            list(entry.program.latencies),
            _target(target),
            arguments,
        )
    )
    report.replayed[op] += 1


@lru_cache(64)
def _target(text: str) -> Any:
    """Return a TVM target. Of an older TVM's text only the kind is taken: its attributes have changed since."""
    from tvm.target import Target

    parsed = json.loads(text)
    return Target(parsed if isinstance(parsed, dict) or not parsed.count(" -") else parsed.split()[0])
