"""What a tuning run shows of itself while it goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

from ..records.trials import TrialLog
from ..search.scheduler import TaskProgress

if TYPE_CHECKING:
    from ..networks.tasks import TuningTask

# Wall time of search, model and measure; build and run are what the workers spent inside measure, and overlap.
PHASES = ("search", "model", "measure", "build", "run")


@dataclass
class SessionView:
    """What a progress display may look at; updated in place.

    Attributes:
        tasks, progress: the tasks and how far each is, by index.
        log: every measured program.
        untuned: each task's untuned latency in seconds, by task id.
        phases: seconds of the tuning's clock spent in each phase, in earlier parts of the run too.
        current: index of the task in hand, or None.
        phase: what is being done.
        reused: programs of earlier runs that this one began with.
        unread: programs that were scored worst because the model could not be shown them.
        notes: what the user should know, a sentence each.
    """

    tasks: Sequence[TuningTask]
    progress: list[TaskProgress]
    log: TrialLog
    trials: int
    batch: int = 0
    untuned: dict[str, float] = field(default_factory=dict)
    phases: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    current: int | None = None
    phase: str = "start"
    reused: int = 0
    unread: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def done(self) -> int:
        """Trials spent."""
        return len(self.log.tuned)

    def latency(self) -> float:
        """Sum over tasks of weight * fastest program known, the untuned one included, in seconds."""
        pairs = zip(self.tasks, self.progress, strict=True)
        return sum(t.weight * min(p.best, self.untuned.get(t.task_id, inf)) for t, p in pairs)

    def better_untuned(self) -> set[str]:
        """Ids of the tasks whose untuned program is the fastest."""
        pairs = zip(self.tasks, self.progress, strict=True)
        return {t.task_id for t, p in pairs if self.untuned.get(t.task_id, inf) < p.best}
