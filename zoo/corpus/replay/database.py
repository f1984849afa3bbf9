"""An old Ansor log as a MetaSchedule database of today's TVM."""

import json
import math
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..importers.records import DATABASE, BadLine, ImportContext
from ..importers.run import read_entries
from .ansor import replay
from .operators import ReplayError, workload


def replay_log(
    log: Path | str, folder: Path | str, target: dict[str, Any] | str | None = None, limit_per_task: int | None = None
) -> dict[str, Any]:
    """Replay a log, check every program against its record, and write a MetaSchedule database.

    Args:
        log: a file or folder of Ansor records, packed or not.
        folder: the database goes here, into `database_workload.json` and `database_tuning_record.json`; records
            are added to those that are there.
        target: TVM target of the database's records; None takes the kind of the log's own.
        limit_per_task: how many programs of a task are tried, in the log's order.

    Returns:
        `share` of the programs tried that were replayed, the numbers of both by operator, the `reasons` of those that
        could not be, the programs not tried (`untimed`: they had failed; `over_limit`), and `broken` lines by kind.
    """
    from tvm.s_tir import meta_schedule as ms

    Path(folder).mkdir(parents=True, exist_ok=True)
    records, workloads = (str(Path(folder) / name) for name in DATABASE)
    database = ms.database.JSONDatabase(workloads, records)
    per_task, tried, replayed, broken = (Counter[str]() for _ in range(4))
    skipped = Counter(untimed=0, over_limit=0)
    reasons: Counter[tuple[str, str]] = Counter()
    examples: dict[str, str] = {}
    # A database may hold records of several devices: a record names its target.
    for entry in read_entries(log, "ansor", ImportContext(device="unknown")):
        if isinstance(entry, BadLine):
            broken[entry.kind] += 1
            continue
        op, task_id = entry.task.op, entry.task.task_id
        if not entry.program.valid or per_task[task_id] == limit_per_task:
            skipped["over_limit" if entry.program.valid else "untimed"] += 1
            continue
        per_task[task_id] += 1
        tried[op] += 1
        try:
            task, seconds = workload(entry.task.workload), list(entry.program.latencies)
            schedule = replay(task, json.loads(entry.program.trace))
            arguments = ms.arg_info.ArgInfo.from_entry_func(task.mod, remove_preproc=False)
            known = database.commit_workload(task.mod)
            tvm_target = _target(json.dumps(target) if target else entry.program.target)
            record = ms.database.TuningRecord(schedule.trace, known, seconds, tvm_target, arguments)
            database.commit_tuning_record(record)
            replayed[op] += 1
        except ReplayError as error:
            reasons[op, error.reason] += 1
            examples.setdefault(error.reason, error.message)
    return {
        "share": replayed.total() / tried.total() if tried else math.nan,
        "operators": {op: {"replayed": replayed[op], "of": n} for op, n in sorted(tried.items())},
        "reasons": [
            {"op": op, "reason": reason, "programs": n, "example": examples[reason]}
            for (op, reason), n in reasons.most_common()
        ],
        **skipped,
        "broken": dict(broken),
    }


@lru_cache(64)
def _target(text: str) -> Any:
    """Return a TVM target. Of an older TVM's text only the kind is taken: its attributes have changed since."""
    from tvm.target import Target

    parsed = json.loads(text)
    return Target(parsed if isinstance(parsed, dict) or not parsed.count(" -") else parsed.split()[0])
