"""Taking up a run that was stopped or killed: log, progress and cost model are brought to where the database is."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

from .records import as_result, make_trial, mark

if TYPE_CHECKING:
    from .session_view import SessionView
    from .tasks import TuningTask


def records_of(database: Any, tasks: Sequence[TuningTask]) -> dict[int, list[Any]]:
    """The database's records of each task, by its index; fastest first."""
    found: dict[int, list[Any]] = defaultdict(list)
    workloads = [database.commit_workload(task.mod) for task in tasks]
    for record in database.get_all_tuning_records():
        index = next((i for i, w in enumerate(workloads) if record.workload.same_as(w)), None)
        if index is not None:
            found[index].append(record)
    return found


def take_up(view: SessionView, records: Mapping[int, Sequence[Any]]) -> None:
    """Bring the log and each task's progress to where the database is."""
    _recover(view, records)
    for index, task in enumerate(view.tasks):
        trials = [t for t in view.log.trials if t.task == task.task_id]
        untuned = [t.latency for t in trials if t.kind == "untuned" and t.latency is not None]
        if untuned:
            view.untuned[task.task_id] = untuned[0]
        tuned = [inf if t.latency is None else t.latency for t in trials if t.kind == "tuned"]
        for start in range(0, len(tuned), view.batch):
            view.progress[index].record(tuned[start : start + view.batch])


def _recover(view: SessionView, records: Mapping[int, Sequence[Any]]) -> None:
    """Log the programs that the database holds and the log, cut short by a kill, does not."""
    at = view.log.seconds
    for index, found in records.items():
        task_id = view.tasks[index].task_id
        logged = Counter(mark(t) for t in view.log.tuned if t.task == task_id)
        trials = [make_trial(task_id, at, as_result(record), None, "tuned", 0.0) for record in found]
        missing = Counter(map(mark, trials)) - logged  # the database gives records by latency, not by time
        lost = []
        for trial in trials:
            if missing[mark(trial)] > 0:
                missing[mark(trial)] -= 1
                lost.append(trial)
        if lost:
            view.log.append(lost)
