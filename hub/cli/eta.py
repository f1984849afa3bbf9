"""The time that a tuning run has left, from its own pace: preparing, first rounds, later rounds, compiling, timing."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..tuning.session_view import SessionView

# Trials that the pace expected of later rounds counts for, beside the pace that is measured.
_PRIOR_TRIALS = 8
# Compiling and timing at the end, in seconds, and as a share of what preparing took: the same network is imported,
# exported, lowered and run, on a machine that is as busy.
_END_SECONDS, _END_SHARE = 10.0, 0.8


@dataclass
class _Session:
    """The clock of one session, and its pace.

    Attributes:
        began: when its first search began; what comes before is no part of any trial's cost.
        first: trials that an earlier part of the run spent.
        spent: seconds in searching (with the cost model) and in measuring.
        even: when, and at how many trials, every task had had its first round.
    """

    began: float
    first: int
    done: int
    spent: dict[bool, float] = field(default_factory=lambda: {True: 0.0, False: 0.0})
    phase: str = "start"
    at: float = 0.0
    even: tuple[float, int] | None = None

    def update(self, now: float, view: SessionView) -> None:
        """Take what the session shows of itself now."""
        if self.done == self.first and self.phase == "measure" and view.phase != "measure":
            self.began, self.spent = now, {True: 0.0, False: 0.0}  # the untuned programs are measured
        else:
            self.spent[self.phase == "measure"] += now - self.at
        self.phase, self.at, self.done = view.phase, now, view.done
        if self.even is None and all(task.rounds or task.exhausted for task in view.progress):
            self.even = now, view.done

    def left(self, now: float, view: SessionView) -> float | None:
        """Seconds of this session from now on; None before its first trial."""
        count, trials_left = view.done - self.first, max(0, view.trials - view.done)
        if not count:
            return None
        waiting = sum(not (task.rounds or task.exhausted) for task in view.progress)
        visited = max(1, min(count, len(view.progress) - waiting))
        running = now - self.at
        measure = (self.spent[True] + running * (self.phase == "measure")) / count
        search = (self.spent[False] + running * (self.phase != "measure")) / visited
        # A search is shared by the programs of its round. A task's first round has one program where searching is
        # cheap, later ones up to a batch.
        later = measure + search / max(1, view.batch)
        if self.even is not None:
            since, at = self.even
            later = (_PRIOR_TRIALS * later + now - since) / (_PRIOR_TRIALS + view.done - at)
        first = min(waiting, trials_left)
        return first * (measure + search) + (trials_left - first) * later


class Eta:
    """Estimate the seconds left of `tune`; the screen's thread may ask while the run's own goes on.

    Args:
        sessions: searches that the run makes one after the other.
        clock: seconds from any start.
    """

    def __init__(self, sessions: int = 1, clock: Callable[[], float] = time.monotonic) -> None:
        self._sessions, self._clock = sessions, clock
        self._started = self._session_start = clock()
        self._prepared = 0.0
        self._ended: float | None = None
        self._durations: list[float] = []
        self._label: str | None = None
        self._session: _Session | None = None
        self._view: SessionView | None = None

    def stage(self) -> None:
        """A step outside the sessions begins."""
        if self._session is not None:
            self._durations.append(self._clock() - self._session_start)
            self._session, self._ended = None, self._clock()

    def session(self, label: str, view: SessionView) -> None:
        """A session changed."""
        now = self._clock()
        if self._session is None or label != self._label:
            self._prepared = self._prepared or now - self._started
            self._label, self._session_start = label, now
            self._session = _Session(now, view.done, view.done, at=now)
        self._view = view
        self._session.update(now, view)

    def left(self) -> float | None:
        """Seconds until the end of the run; None while nothing tells."""
        now = self._clock()
        end = max(_END_SECONDS, _END_SHARE * self._prepared + _END_SECONDS)
        current, view = self._session, self._view
        if current is not None and view is not None:
            session = current.left(now, view)
            if session is None:
                return None
            whole = now - self._session_start + session
            return session + whole * max(0, self._sessions - len(self._durations) - 1) + end
        if self._ended is None:
            return None
        after = sum(self._durations[:1]) * max(0, self._sessions - len(self._durations))
        passed = now - self._ended
        return after + max(end - passed, passed / 4)


def left_text(seconds: float | None) -> str:
    """`about 3 min left`, or `time left unknown`."""
    if seconds is None:
        return "time left unknown"
    if seconds >= 90:
        return f"about {seconds / 60:.0f} min left"
    return f"about {max(5, 5 * round(seconds / 5))} s left"
