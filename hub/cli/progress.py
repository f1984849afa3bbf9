"""Progress of adapt, tune and collect: displays on a terminal, lines elsewhere, and the time that is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress import Progress, TaskID
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from ..adaptation.settings import AdaptProgress
from ..tuning.tune import TuneProgress
from .native_log import NativeLog
from .output import Output
from .terminal import Column, bar_columns, table

if TYPE_CHECKING:
    from ..tuning.collect import CollectProgress
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


ROWS = 16
# Lines of the display besides the tasks: head, caption, bar, state, warnings, and a line for the shell.
_OTHER_LINES = 6
# Without a terminal (a log file, CI): one line after so many seconds.
LINE_EVERY = 15.0


class _TuneScreen(TuneProgress):
    """Draws on a terminal, at every refresh anew: the clock runs on while TVM is busy, and the window may change."""

    def __init__(self, console: Console, eta: Eta, log: NativeLog | None) -> None:
        self._console, self._eta, self._log = console, eta, log
        self._spinner = Spinner("dots")
        self._stage = ""
        self._session: tuple[str, SessionView] | None = None

    def stage(self, text: str) -> None:
        self._eta.stage()
        self._stage, self._session = text, None

    def session(self, label: str, view: SessionView) -> None:
        self._eta.session(label, view)
        self._session = label, view

    def note(self, text: str) -> None:
        self._console.print(text, highlight=False)  # above the display, where it stays

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        left = self._eta.left()
        if self._session is None:
            self._spinner.update(text=_line(", ".join([self._stage, *([left_text(left)] if left is not None else [])])))
            yield self._spinner
        else:
            label, view = self._session
            rows = min(ROWS, max(1, options.size.height - _OTHER_LINES))
            yield task_table(view, options.max_width, rows)
            yield _bar(label, view, options.max_width)
            yield _line(", ".join([left_text(left), *_best(view), view.phase]))
        if self._log is not None and (warnings := self._log.summary()):
            yield _line(warnings, style="dim")


class _TuneLines(TuneProgress):
    """Says a line now and then, where there is no terminal."""

    def __init__(self, console: Console, eta: Eta) -> None:
        self._console, self._eta = console, eta
        self._last = 0.0

    def stage(self, text: str) -> None:
        self._eta.stage()
        self._console.print(text, highlight=False)

    def note(self, text: str) -> None:
        self._console.print(text, highlight=False)

    def session(self, label: str, view: SessionView) -> None:
        self._eta.session(label, view)
        if time.monotonic() - self._last >= LINE_EVERY:
            self._last = time.monotonic()
            words = [f"{label}: {view.done}/{view.trials} programs", *_best(view), left_text(self._eta.left())]
            self._console.print(", ".join(words), highlight=False)


def task_table(view: SessionView, width: int, rows: int = ROWS) -> Table:
    """Make the table of the heaviest tasks: trials, untuned and best latency, share of the network.

    Args:
        view: of the session.
        width: cells of the terminal; columns that do not fit are left out.
        rows: tasks at most.
    """
    total = view.latency()
    found = []
    for index, (task, progress) in enumerate(zip(view.tasks, view.progress, strict=True)):
        untuned = view.untuned.get(task.task_id)
        now = progress.best if isfinite(progress.best) else untuned
        part = task.weight * (now or 0.0)
        cells = (
            task.name,
            str(task.weight),
            f"{progress.trials}{'*' if not progress.open() else ''}",
            _ms(untuned),
            _ms(progress.best),
            f"{part / total:.0%}" if isfinite(total) and total else "",
        )
        found.append((-part, index, cells))
    found.sort()
    shown = found[:rows]
    names, calls, trials, untuned, best, share = zip(*(cells for *_, cells in shown), strict=True)
    columns = [
        Column("task", [name[:44] for name in names], least=12),
        Column("calls", calls, number=True, leaves=1),
        Column("trials", trials, number=True, leaves=4),
        Column("untuned, ms", untuned, number=True, leaves=2),
        Column("best, ms", best, number=True),
        Column("share", share, number=True, leaves=3),
    ]
    drawn = table(columns, width, ["bold" if index == view.current else None for _, index, _ in shown])
    if len(found) > rows:
        drawn.caption = f"and {len(found) - rows} smaller tasks"
        drawn.caption_justify = "left"
    return drawn


def _bar(label: str, view: SessionView, width: int) -> Table:
    row = Table.grid(padding=(0, 1))
    done = f"{label} {view.done}/{view.trials}"
    row.add_row(done, ProgressBar(total=view.trials, completed=view.done, width=max(8, min(40, width - len(done) - 1))))
    return row


def _line(text: str, style: str = "") -> Text:
    """A text that is cut at the window's edge: a second line would make the display jump."""
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _best(view: SessionView) -> list[str]:
    best = _ms(view.latency())
    return [f"sum of tasks {best} ms"] if best else []


def _ms(seconds: float | None) -> str:
    return "" if seconds is None or not isfinite(seconds) else f"{1e3 * seconds:.4g}"


@contextmanager
def shown_tuning(out: Output, log: NativeLog | None = None, sessions: int = 1) -> Iterator[TuneProgress]:
    """Show the progress of `tune` on stderr while inside.

    A terminal gets a live table, anything else lines; quiet mode gets nothing.

    Args:
        out: of the command.
        log: whose warnings are counted on the screen.
        sessions: searches that the run makes one after the other.
    """
    eta = Eta(sessions)
    if out.mode == "quiet":
        yield TuneProgress()
    elif not out.console.is_interactive:
        yield _TuneLines(out.console, eta)
    else:
        screen = _TuneScreen(out.console, eta, log)
        # What Python prints meanwhile is for the log file, where its descriptors lead, and not for rich.
        with Live(
            screen, console=out.console, refresh_per_second=4, transient=True, redirect_stdout=False,
            redirect_stderr=False,
        ):  # fmt: skip
            yield screen


class _AdaptBars(AdaptProgress):
    """Draws each phase as a bar."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._current: TaskID | None = None
        self._failed = 0

    def start(self, phase: str, total: int) -> None:
        """Finish the bar before, begin a new one."""
        self.finish()
        self._failed = 0
        self._current = self._bars.add_task(phase, total=total, note="")

    def advance(self, failed: bool = False) -> None:
        """Move the bar, and count failures beside it."""
        if self._current is None:
            return
        self._failed += failed
        note = f"{self._failed} failed" if self._failed else ""
        self._bars.update(self._current, advance=1, note=note)

    def note(self, text: str) -> None:
        """A line above the bars."""
        self._bars.console.print(text, highlight=False)

    def finish(self) -> None:
        """Stop the clock of the current bar."""
        if self._current is not None:
            self._bars.stop_task(self._current)


class _AdaptLines(AdaptProgress):
    """Says each phase as it begins, where there is no terminal (a log file, CI)."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def start(self, phase: str, total: int) -> None:
        """A line."""
        self.note(f"{phase}: {total} to do" if total > 1 else phase)

    def note(self, text: str) -> None:
        """A line."""
        self._console.print(text, highlight=False)


@contextmanager
def shown_progress(out: Output) -> Iterator[AdaptProgress]:
    """Bars on stderr while inside; lines where stderr is no terminal; nothing in quiet mode."""
    if out.mode == "quiet" or not out.console.is_interactive:
        yield AdaptProgress() if out.mode == "quiet" else _AdaptLines(out.console)
        return
    with Progress(
        *bar_columns(out.console.width), console=out.console, redirect_stdout=False, redirect_stderr=False
    ) as bars:
        shown = _AdaptBars(bars)
        yield shown
        shown.finish()


# Without a terminal: one line after so many seconds.
_LINE_EVERY = 15.0


def _say_now_and_then(out: Output, last: list[float], p: CollectProgress) -> None:
    if time.monotonic() - last[0] >= _LINE_EVERY or p.done >= p.total:
        last[0] = time.monotonic()
        out.note(f"{p.done}/{p.total} programs ({p.failed} failed): {p.phase} {p.task}")


@contextmanager
def shown_collecting(out: Output, programs: int) -> Iterator[Callable[[CollectProgress], None]]:
    """Give what is to be told after each program: a bar on a terminal, lines now and then elsewhere."""
    if not out.console.is_interactive:
        yield partial(_say_now_and_then, out, [time.monotonic()])
        return
    from rich.progress import Progress

    from .terminal import bar_columns

    bars = Progress(
        *bar_columns(out.console.width), console=out.console, disable=out.mode != "human", transient=True,
        redirect_stdout=False, redirect_stderr=False,
    )  # fmt: skip
    bar = bars.add_task("collecting", total=programs, note="")

    def tell(p: CollectProgress) -> None:
        bars.start()
        bars.update(
            bar,
            completed=p.done,
            total=max(p.total, p.done),
            description=f"{p.phase} {p.task}",
            note=f"{p.failed} failed" if p.failed else "",
        )
        if p.done >= p.total:
            bars.stop()

    try:
        yield tell
    finally:
        bars.stop()
