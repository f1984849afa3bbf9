"""The time that a tuning run has left, from its own pace: preparing, first rounds, later rounds, compiling, timing."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..tuning.session_view import SessionView

# Trials that the pace expected of later rounds counts for, beside the pace that is measured.
_PRIOR_TRIALS = 4
# Programs that must be measured before they tell the pace.
_FIRST_TRIALS = 4
# The heaviest tasks have their first round first: what a first round of the others takes, of theirs.
_LIGHTER = 0.7
# Compiling and timing at the end, in seconds, and as a share of what preparing took: the same network is imported,
# exported, lowered and run, on a machine that is as busy.
_END_SECONDS, _END_SHARE = 10.0, 0.25
# Of that time, compiling.
_COMPILE_SHARE = 0.25


@dataclass
class _Session:
    """The clock of one session, and its pace.

    Attributes:
        first: trials that an earlier part of the run spent.
        spent: seconds in measuring (True) and in searching with the cost model (False).
        searches: how many searches these were, one a task and round.
        even: when, and at how many trials, every task had had its first round.
        round: when, and at how many trials, the round in hand began.
    """

    first: int
    done: int
    spent: dict[bool, float] = field(default_factory=lambda: {True: 0.0, False: 0.0})
    searches: int = 0
    phase: str = "start"
    at: float = 0.0
    even: tuple[float, int] | None = None
    round: tuple[float, int] = (0.0, 0)

    def update(self, now: float, view: SessionView) -> None:
        """Take what the session shows of itself now."""
        if self.done == self.first and self.phase == "measure" and view.phase != "measure":
            self.spent, self.searches = {True: 0.0, False: 0.0}, 0  # the untuned programs are measured
        else:
            self.spent[self.phase == "measure"] += now - self.at
        if view.phase == "search" != self.phase:
            self.searches += 1
            if self.phase == "measure":
                self.round = now, view.done
        self.phase, self.at, self.done = view.phase, now, view.done
        if self.even is None and all(task.rounds or task.exhausted for task in view.progress):
            self.even = self.round = now, view.done

    def left(self, now: float, view: SessionView) -> float | None:
        """Seconds of this session from now on; None before its first trials."""
        count, trials_left = view.done - self.first, max(0, view.trials - view.done)
        if not trials_left:
            return 0.0
        if count < _FIRST_TRIALS:
            return None
        waiting = sum(not (task.rounds or task.exhausted) for task in view.progress)
        running = now - self.at
        measure = (self.spent[True] + running * (self.phase == "measure")) / count
        search = (self.spent[False] + running * (self.phase != "measure")) / max(1, self.searches)
        # A search is shared by the programs of its round. A task's first round has one program where searching is
        # cheap, later ones up to a batch.
        later = measure + search / max(1, view.batch)
        if self.even is None:
            first = min(waiting, trials_left)
            return _LIGHTER * first * (measure + search) + (trials_left - first) * later
        (since, before), (began, at) = self.even, self.round
        later = (_PRIOR_TRIALS * later + began - since) / (_PRIOR_TRIALS + at - before)
        # The round in hand is not counted into the pace before it ends: its search gives no program for a while.
        return max((view.trials - at) * later - (now - began), _LIGHTER * trials_left * later)


class Eta:
    """Estimate the seconds left of `tune`; the screen's thread may ask while the run's own goes on.

    Args:
        sessions: searches that the run makes one after the other.
        clock: seconds from any start.
    """

    def __init__(self, sessions: int = 1, clock: Callable[[], float] = time.monotonic) -> None:
        self._sessions, self._clock = sessions, clock
        self._started = self._session_started = clock()
        self._prepared = 0.0
        self._durations: list[float] = []
        self._label: str | None = None
        self._session: _Session | None = None
        self._view: SessionView | None = None
        self._stages: list[float] = []  # when each stage after the last session began

    def stage(self) -> None:
        """A step outside the sessions begins."""
        now = self._clock()
        if self._session is not None:
            self._durations.append(now - self._session_started)
            self._session = None
        self._stages.append(now)

    def session(self, label: str, view: SessionView) -> None:
        """A session changed."""
        now = self._clock()
        if self._session is None or label != self._label:
            self._prepared = self._prepared or now - self._started
            self._label, self._session_started, self._stages = label, now, []
            self._session = _Session(view.done, view.done, at=now)
        self._view = view
        self._session.update(now, view)

    def left(self) -> float | None:
        """Seconds until the end of the run; None while nothing tells."""
        now = self._clock()
        end = _END_SECONDS + _END_SHARE * self._prepared
        waiting = max(0, self._sessions - len(self._durations))
        current, view, stages = self._session, self._view, self._stages
        if current is not None and view is not None:
            left = current.left(now, view)
            if left is None:
                return None
            return left + (now - self._session_started + left) * (waiting - 1) + end
        if not self._durations or not stages:
            return None
        if waiting:
            return self._durations[0] * waiting + end
        passed, timing = now - stages[-1], (1 - _COMPILE_SHARE) * end
        return max(end - passed, timing) if len(stages) == 1 else max(timing - passed, passed / 4)


def left_text(seconds: float | None) -> str:
    """Return `about 3 min left`, or `time left unknown`."""
    if seconds is None:
        return "time left unknown"
    if seconds >= 90:
        return f"about {seconds / 60:.0f} min left"
    return f"about {max(5, 5 * round(seconds / 5))} s left"
