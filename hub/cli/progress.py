"""Progress of adapt, tune, collect and bundle: a display on a terminal, lines elsewhere, and the time that is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import isfinite
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from ..adaptation.config import AdaptProgress
from ..tuning.progress import TuneProgress
from .native_log import NativeLog
from .output import Output
from .parts import Column
from .terminal import table

if TYPE_CHECKING:
    from ..tuning.collect import CollectProgress
    from ..tuning.progress import SessionView

ROWS = 16
# Lines of the display besides the tasks: head, caption, bar, state, warnings, and a line for the shell.
_OTHER_LINES = 6
# Without a terminal (a log file, CI): one line after so many seconds.
LINE_EVERY = 15.0
# From this width on, bars and notes stand beside the counts.
_WIDE = 70
# Programs after the first ones of a session that tell its pace.
_PACE_PROGRAMS = 8
# Compiling and timing at the end, in seconds, and as a share of what preparing took: the same network is imported,
# exported, lowered and run, on a machine that is as busy.
_END_SECONDS, _END_SHARE = 10.0, 0.25
# Of that time, compiling.
_COMPILE_SHARE = 0.25


class Display(AdaptProgress, TuneProgress):
    """Listener of every command that takes long; this one is silent.

    `start` and `advance` are phases of so many steps, `stage` and `session` those of a tuning run.
    """

    def note(self, text: str) -> None:
        """Show a sentence that stays."""

    def count(self, text: str, done: int, total: int, failed: int = 0) -> None:
        """Show that so many programs of all are done, and what is being done."""

    def programs(self, progress: CollectProgress) -> None:
        """Show the programs of a corpus that is being measured."""
        self.count(f"{progress.phase} {progress.task}", progress.done, progress.total, progress.failed)


class Lines(Display):
    """Prints a line now and then, where there is no terminal."""

    def __init__(self, console: Console, eta: Eta) -> None:
        self._console, self._eta = console, eta
        self._last = 0.0

    def note(self, text: str) -> None:
        self._console.print(text)

    def start(self, phase: str, total: int) -> None:
        self.note(f"{phase}: {total} to do" if total > 1 else phase)

    def stage(self, text: str) -> None:
        self._eta.stage()
        self.note(text)

    def session(self, label: str, view: SessionView) -> None:
        self._eta.session(label, view)
        if self._due():
            facts = [f"{label}: {view.done}/{view.trials} programs", *_best(view), left_text(self._eta.left())]
            self.note(", ".join(facts))

    def count(self, text: str, done: int, total: int, failed: int = 0) -> None:
        if self._due() or done >= total:
            self.note(f"{done}/{total} programs ({failed} failed): {text}")

    def _due(self) -> bool:
        now = time.monotonic()
        due = now - self._last >= LINE_EVERY
        self._last = now if due else self._last
        return due


class Screen(Display):
    """Draws on a terminal, at every refresh anew: the clock runs on while TVM is busy, and the window may change."""

    def __init__(self, console: Console, eta: Eta, log: NativeLog | None) -> None:
        self._console, self._eta, self._log = console, eta, log
        self._spinner = Spinner("dots")
        self._stage = ""
        self._session: tuple[str, SessionView] | None = None
        self._bars = Progress(console=console)
        self._bar: TaskID | None = None
        self._failed = 0

    def note(self, text: str) -> None:
        self._console.print(text)  # above the display, where it stays

    def start(self, phase: str, total: int) -> None:
        if self._bar is not None:
            self._bars.stop_task(self._bar)
        self._failed = 0
        self._bar = self._bars.add_task(phase, total=total, note="")

    def advance(self, failed: bool = False) -> None:
        if self._bar is not None:
            self._failed += failed
            self._bars.update(self._bar, advance=1, note=_failed_text(self._failed))

    def count(self, text: str, done: int, total: int, failed: int = 0) -> None:
        if self._bar is None:
            self.start(text, total)
        assert self._bar is not None
        note = _failed_text(failed)
        self._bars.update(self._bar, completed=done, total=max(total, done), description=text, note=note)

    def stage(self, text: str) -> None:
        self._eta.stage()
        for task in self._bars.task_ids:
            self._bars.remove_task(task)
        self._stage, self._session, self._bar = text, None, None

    def session(self, label: str, view: SessionView) -> None:
        self._eta.session(label, view)
        self._session = label, view

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        left = self._eta.left()
        if self._bar is not None:
            self._bars.columns = tuple(bar_columns(options.max_width))
            yield self._bars.make_tasks_table(self._bars.tasks)
        elif self._session is None:
            self._spinner.update(text=_line(", ".join([self._stage, *([left_text(left)] if left is not None else [])])))
            yield self._spinner
        else:
            label, view = self._session
            rows = min(ROWS, max(1, options.size.height - _OTHER_LINES))
            yield task_table(view, options.max_width, rows)
            yield _session_bar(label, view, options.max_width)
            yield _line(", ".join([left_text(left), *_best(view), view.phase]))
        if self._log is not None and (warnings := self._log.summary()):
            yield _line(warnings, style="dim")


@contextmanager
def shown_progress(output: Output, log: NativeLog | None = None, sessions: int = 1) -> Iterator[Display]:
    """Show progress on stderr while inside: a live display on a terminal, else lines; nothing in quiet mode.

    Args:
        output: of the command.
        log: whose warnings are counted on the screen.
        sessions: searches that the run makes one after the other.
    """
    eta = Eta(sessions)
    if output.mode == "quiet":
        yield Display()
    elif not output.console.is_interactive:
        yield Lines(output.console, eta)
    else:
        screen = Screen(output.console, eta, log)
        # Texts that Python prints meanwhile are for the log file, where its descriptors lead, and not for rich.
        with Live(
            screen, console=output.console, refresh_per_second=4, transient=True, redirect_stdout=False,
            redirect_stderr=False,
        ):  # fmt: skip
            yield screen


def bar_columns(width: int) -> list[ProgressColumn]:
    """Make the columns of progress bars whose tasks have a field `note`; a narrow terminal has no bar and no note."""
    named = max(10, min(26, width - 22))
    name, count = TextColumn(f"{{task.description:<{named}.{named}}}", markup=False), MofNCompleteColumn()
    if width < _WIDE:
        return [name, count, TimeRemainingColumn()]
    bar, note = BarColumn(bar_width=min(40, width - 66)), TextColumn("{task.fields[note]}", markup=False)
    return [name, bar, count, TimeElapsedColumn(), TimeRemainingColumn(), note]


def task_table(view: SessionView, width: int, rows: int = ROWS) -> Table:
    """Make the table of the heaviest tasks: trials, untuned and best latency, share of the network.

    Args:
        view: of the session.
        width: cells of the terminal; columns that do not fit are left out.
        rows: tasks at most.
    """
    total = view.latency()
    lines = []
    for index, (task, progress) in enumerate(zip(view.tasks, view.progress, strict=True)):
        untuned = view.untuned.get(task.task_id)
        now = progress.best if isfinite(progress.best) else untuned
        part = task.weight * (now or 0.0)
        share = f"{part / total:.0%}" if isfinite(total) and total else ""
        trials = f"{progress.trials}{'*' if not progress.open() else ''}"
        cells = (task.name[:44], str(task.weight), trials, _ms(untuned), _ms(progress.best), share)
        lines.append((-part, index, cells))
    lines.sort()
    shown = lines[:rows]
    names, calls, trials, untuned, best, share = zip(*(cells for *_, cells in shown), strict=True)
    columns = [
        Column("task", names, least=12),
        Column("calls", calls, True, leaves=1),
        Column("trials", trials, True, leaves=4),
        Column("untuned, ms", untuned, True, leaves=2),
        Column("best, ms", best, True),
        Column("share", share, True, leaves=3),
    ]
    drawn = table(columns, width, ["bold" if index == view.current else None for _, index, _ in shown])
    if len(lines) > rows:
        drawn.caption = f"and {len(lines) - rows} smaller tasks"
        drawn.caption_justify = "left"
    return drawn


def _session_bar(label: str, view: SessionView, width: int) -> Table:
    row = Table.grid(padding=(0, 1))
    done = f"{label} {view.done}/{view.trials}"
    row.add_row(done, ProgressBar(total=view.trials, completed=view.done, width=max(8, min(40, width - len(done) - 1))))
    return row


def _line(text: str, style: str = "") -> Text:
    """Return a text that is cut at the window's edge: a second line would make the display jump."""
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _best(view: SessionView) -> list[str]:
    best = _ms(view.latency())
    return [f"sum of tasks {best} ms"] if best else []


def _ms(seconds: float | None) -> str:
    return "" if seconds is None or not isfinite(seconds) else f"{1e3 * seconds:.4g}"


def _failed_text(failed: int) -> str:
    return f"{failed} failed" if failed else ""


class Eta:
    """Estimate of the seconds left of `tune`: the programs left at the pace so far, then compiling and timing.

    The pace is counted from the first measured programs of the session, which follow the untuned ones.

    Args:
        sessions: searches that the run makes one after the other.
        clock: seconds from any start.
    """

    def __init__(self, sessions: int = 1, clock: Callable[[], float] = time.monotonic) -> None:
        self._waiting, self._clock = sessions, clock
        self._started = clock()
        self._prepared = self._lasted = self._began = 0.0
        # Seconds of compiling and timing, or of timing alone once that has begun.
        self._end = _END_SECONDS
        self._view: SessionView | None = None
        self._label, self._resumed = "", 0
        self._first: tuple[float, int] | None = None

    def stage(self) -> None:
        """Note that a step outside the sessions begins."""
        now = self._clock()
        if self._view is not None:
            self._view, self._lasted = None, now - self._began
            self._waiting -= 1
        elif self._lasted:
            self._end *= 1 - _COMPILE_SHARE
        self._began = now

    def session(self, label: str, view: SessionView) -> None:
        """Note that a session changed."""
        now = self._clock()
        if self._view is None or label != self._label:
            self._prepared = self._prepared or now - self._started
            self._end = _END_SECONDS + _END_SHARE * self._prepared
            self._label, self._began, self._resumed, self._first = label, now, view.done, None
        if self._first is None and view.done > self._resumed:
            self._first = now, view.done
        self._view = view

    def left(self) -> float | None:
        """Return the seconds until the end of the run; None while nothing tells."""
        now, view = self._clock(), self._view
        passed = now - self._began
        if view is not None:
            left = self._session_left(now, view)
            return None if left is None else left + (passed + left) * (self._waiting - 1) + self._end
        return self._lasted * self._waiting + max(self._end - passed, passed / 6) if self._lasted else None

    def _session_left(self, now: float, view: SessionView) -> float | None:
        if view.done >= view.trials:
            return 0.0
        began, before = self._first or (now, view.done)
        count = view.done - before
        # Of the program in hand, half is done.
        return (now - began) / count * (view.trials - view.done - 0.5) if count >= _PACE_PROGRAMS else None


def left_text(seconds: float | None) -> str:
    """Return `about 3 min left`, or `time left unknown`."""
    if seconds is None:
        return "time left unknown"
    if seconds >= 90:
        return f"about {seconds / 60:.0f} min left"
    return f"about {max(5, 5 * round(seconds / 5))} s left"
