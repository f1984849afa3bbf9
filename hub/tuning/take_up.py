"""Taking up a run that was stopped or killed: log, progress and cost model are brought to where the database is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

from ..device.candidate import tuning_record
from ..records.history import MOST_RECORDS, KnownProgram
from ..records.records import as_result, make_trial, mark, programs_of
from ..records.trials import Trial

if TYPE_CHECKING:
    from ..networks.tasks import TuningTask
    from .session_view import SessionView


# Programs of a task that a resumed run shows to the model at most, the last ones: each is replayed in TVM, and a
# checkpoint takes no more as context.
MOST_TAUGHT = 512


def take_up(view: SessionView, database: Any) -> None:
    """Bring the log and each task's progress to where the database is."""
    for task in view.tasks:
        _recover(view, task, database)
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
    """Put the fastest programs that earlier runs measured into the database and the log, once a run.

    One whose trace does not apply to the task is left out, and `view.notes` says so.
    """
    task = view.tasks[index]
    if any(trial.kind == "reused" and trial.task == task.task_id for trial in view.log.trials):
        return
    records: list[Any] = []
    latencies: list[float] = []
    unfit = 0
    for program in known:
        if len(records) == MOST_RECORDS or not isfinite(program.latency):
            break
        record = tuning_record(task.mod, target, database.workload_of(task.mod), program.trace, program.latency)
        if record is None:
            unfit += 1
            continue
        records.append(record)
        latencies.append(program.latency)
    # The log first: a record that no line tells of would be taken for a lost trial.
    view.log.append([Trial(task.task_id, 0.0, (latency,), latency, kind="reused") for latency in latencies])
    for record in records:
        database.put(record)
    view.progress[index].known = min(latencies, default=inf)
    if unfit:
        view.notes.append(f"{task.name}: stored programs left out because they do not apply: {unfit}")


def taught(database: Any, task: TuningTask) -> tuple[list[Any], list[Any]]:
    """Candidates and results of programs that were measured before, in that order, for the cost model."""
    records = database.latest(task.mod, MOST_TAUGHT)
    return [record.as_measure_candidate() for record in records], [as_result(record.run_secs) for record in records]


def _recover(view: SessionView, task: TuningTask, database: Any) -> None:
    """Log the programs that the database holds and the log, cut short by a kill, does not."""
    logged = Counter(mark(t) for t in view.log.trials if t.task == task.task_id and t.kind != "untuned")
    at = view.log.seconds
    lost = []
    for _, seconds in programs_of(database, task.mod):
        trial = make_trial(task.task_id, at, as_result(seconds), None, "tuned", 0.0)
        if logged[mark(trial)] > 0:
            logged[mark(trial)] -= 1
        else:
            lost.append(trial)
    if lost:
        view.log.append(lost)
