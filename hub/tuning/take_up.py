"""Taking up a run that was stopped or killed: log, progress and cost model are brought to where the database is."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

from .history import MOST_RECORDS, KnownProgram
from .records import as_record, as_result, make_trial, mark
from .trials import Trial

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
        view.progress[index].known = min((t.latency for t in trials if t.kind == "reused" and t.latency), default=inf)
        tuned = [inf if t.latency is None else t.latency for t in trials if t.kind == "tuned"]
        for start in range(0, len(tuned), view.batch):
            view.progress[index].record(tuned[start : start + view.batch])


def take_over(view: SessionView, database: Any, target: Any, index: int, known: Sequence[KnownProgram]) -> None:
    """Put the fastest programs that earlier runs measured into the database and the log, once a run."""
    task = view.tasks[index]
    if any(trial.kind == "reused" and trial.task == task.task_id for trial in view.log.trials):
        return
    fastest = [program for program in known if isfinite(program.latency)][:MOST_RECORDS]
    # The log first: a record that no line tells of would be taken for a lost trial.
    view.log.append([Trial(task.task_id, 0.0, (p.latency,), p.latency, kind="reused") for p in fastest])
    for program in fastest:
        database.commit_tuning_record(as_record(task, target, database, program))
    view.progress[index].known = min((p.latency for p in fastest), default=inf)


def _recover(view: SessionView, records: Mapping[int, Sequence[Any]]) -> None:
    """Log the programs that the database holds and the log, cut short by a kill, does not."""
    at = view.log.seconds
    for index, found in records.items():
        task_id = view.tasks[index].task_id
        logged = Counter(mark(t) for t in view.log.trials if t.task == task_id and t.kind != "untuned")
        trials = [make_trial(task_id, at, as_result(record), None, "tuned", 0.0) for record in found]
        missing = Counter(map(mark, trials)) - logged  # the database gives records by latency, not by time
        lost = []
        for trial in trials:
            if missing[mark(trial)] > 0:
                missing[mark(trial)] -= 1
                lost.append(trial)
        if lost:
            view.log.append(lost)
