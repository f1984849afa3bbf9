"""The live view of `tchub tune`: a table of tasks, and a bar with the time that is left."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from ..tuning.tune import TuneProgress
from .eta import Eta, left_text
from .native_log import NativeLog
from .output import Output
from .terminal import Column, table

if TYPE_CHECKING:
    from ..tuning.session import SessionView

ROWS = 16
# Lines of the display besides the tasks: head, caption, bar, state, warnings, and a line for the shell.
_OTHER_LINES = 6
# Without a terminal (a log file, CI): one line after so many seconds.
LINE_EVERY = 15.0


class _Screen(TuneProgress):
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


class _Lines(TuneProgress):
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
        yield _Lines(out.console, eta)
    else:
        screen = _Screen(out.console, eta, log)
        # What Python prints meanwhile is for the log file, where its descriptors lead, and not for rich.
        with Live(
            screen, console=out.console, refresh_per_second=4, transient=True, redirect_stdout=False,
            redirect_stderr=False,
        ):  # fmt: skip
            yield screen
