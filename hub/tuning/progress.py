"""The state of a tuning run while it goes on, and its tuning curve."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..networks.tasks import TuningTask
    from ..records.store import MeasuredProgram
    from ..search.scheduler import TaskProgress

# Wall time of search, model and measure; build and run are what the workers spent inside measure, and overlap.
PHASES = ("search", "model", "measure", "build", "run")


class TuneProgress:
    """Receives each step of a run; this one shows nothing."""

    def stage(self, text: str) -> None:
        """Begin a step of the whole run, e.g. `compile`."""

    def note(self, text: str) -> None:
        """Report something that is worth a line of its own, e.g. that the machine is busy."""

    def session(self, label: str, view: SessionView) -> None:
        """Show the session `label` (`tuned` or `stock`), which changed; `view` is updated in place."""


@dataclass
class SessionView:
    """The state of a session, for displays and the report; updated in place.

    Attributes:
        tasks, progress: the tasks and how far each is, by index.
        programs: every measured program, without its trace.
        untuned: each task's untuned latency in seconds, by task id.
        phases: seconds of the tuning's clock spent in each phase, in earlier parts of the run too.
        current: index of the task in hand, or None.
        reused: programs of earlier runs that this one began with.
        unread: programs that were scored worst because no features could be made of them.
        notes: sentences for the user.
    """

    tasks: Sequence[TuningTask]
    progress: list[TaskProgress]
    trials: int
    programs: list[MeasuredProgram] = field(default_factory=list)
    batch: int = 0
    untuned: dict[str, float] = field(default_factory=dict)
    phases: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    current: int | None = None
    phase: str = "start"
    reused: int = 0
    unread: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def tuned(self) -> list[MeasuredProgram]:
        """Return the programs that count against the budget."""
        return [program for program in self.programs if program.strategy == "tune"]

    @property
    def done(self) -> int:
        """Return the trials spent."""
        return len(self.tuned)

    @property
    def clock(self) -> float:
        """Return the tuning time spent up to the last program, in seconds."""
        return max((program.clock for program in self.programs), default=0.0)

    def latency(self) -> float:
        """Return the sum over tasks of weight * fastest program known, the untuned one included, in seconds."""
        pairs = zip(self.tasks, self.progress, strict=True)
        return sum(t.weight * min(p.best, self.untuned.get(t.task_id, inf)) for t, p in pairs if t.weight)

    def better_untuned(self) -> set[str]:
        """Return the ids of the tasks whose untuned program is the fastest."""
        pairs = zip(self.tasks, self.progress, strict=True)
        return {t.task_id for t, p in pairs if self.untuned.get(t.task_id, inf) < p.best}


def curve(
    programs: Sequence[MeasuredProgram],
    calls: Callable[[Mapping[str, float]], Mapping[str, int]],
    untuned: Mapping[str, float],
) -> list[dict[str, Any]]:
    """Return the tuning curve: after each `trial` the `seconds` of tuning and the network's `latency` in seconds.

    It is what a run has that ends there: the sum over tasks of weight * best so far, with the ways to compute its
    operators that are the fastest by then. A task counts with its untuned program where nothing measured is faster,
    as it is compiled; `lacking` tasks have no other yet. No point is given while some task has none, which happens only
    where untuned programs were not measured, or failed.

    Args:
        programs: in the order they were measured.
        calls: returns the calls of each task in the network, given the latencies in seconds of tasks by their id; see
            `AlternativeChoice.weights`.
        untuned: latency in seconds of tasks by their default schedules.
    """
    fastest, measured = dict(untuned), set[str]()
    weights = calls(fastest)
    points: list[dict[str, Any]] = []
    reused, tuned = ([p for p in programs if p.strategy == strategy] for strategy in ("reused", "tune"))
    for count, program in enumerate([*reused, *tuned], 1 - len(reused)):
        if isfinite(program.latency):
            measured.add(program.task_id)
        if program.latency < fastest.get(program.task_id, inf):
            fastest[program.task_id] = program.latency
            weights = calls(fastest)
        total = sum(weight * fastest.get(task, inf) for task, weight in weights.items() if weight)
        if count > 0 and isfinite(total):
            lacking = sum(task not in measured for task, weight in weights.items() if weight)
            points.append({"trial": count, "seconds": program.clock, "latency": total, "lacking": lacking})
    return points
