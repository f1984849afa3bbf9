"""The live view of `tchub tune`: a table of tasks, and a bar with the time that is left."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from ..tuning.tune import TuneProgress
from .output import Output

if TYPE_CHECKING:
    from ..tuning.session import SessionView

ROWS = 16
# Without a terminal (a log file, CI): one line after so many seconds.
LINE_EVERY = 15.0


class _Live(TuneProgress):
    """Draws on a terminal."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._started = time.monotonic()
        self._first = 0

    def stage(self, text: str) -> None:
        self._started, self._first = time.monotonic(), -1
        self._live.update(Spinner("dots", text=Text(text)))

    def session(self, label: str, view: SessionView) -> None:
        if self._first < 0:
            self._started, self._first = time.monotonic(), view.done
        self._live.update(Group(task_table(view), self._bar(label, view)))

    def _bar(self, label: str, view: SessionView) -> RenderableType:
        row = Table.grid(padding=(0, 1))
        row.add_row(
            f"{label} {view.done}/{view.trials}",
            ProgressBar(total=view.trials, completed=view.done, width=30),
            f"{_ms(view.latency())} ms, {view.phase}, {time_left(self._started, self._first, view)}",
        )
        return row


class _Lines(TuneProgress):
    """Says a line now and then, where there is no terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last = 0.0

    def stage(self, text: str) -> None:
        self._console.print(text, highlight=False)

    def session(self, label: str, view: SessionView) -> None:
        if time.monotonic() - self._last >= LINE_EVERY:
            self._last = time.monotonic()
            best = _ms(view.latency())
            text = f"{label}: {view.done}/{view.trials} programs" + (f", sum of tasks {best} ms" if best else "")
            self._console.print(text, highlight=False)


def time_left(started: float, first: int, view: SessionView) -> str:
    """An ETA from the trials of this process."""
    done = view.done - first
    if done < 2:
        return "time left unknown"
    seconds = (time.monotonic() - started) / done * (view.trials - view.done)
    return f"{seconds / 60:.1f} min left" if seconds >= 90 else f"{seconds:.0f} s left"


def task_table(view: SessionView) -> Table:
    """The heaviest tasks: trials, untuned and best latency, share of the network."""
    table = Table(box=None, pad_edge=False)
    table.add_column("task", max_width=44, no_wrap=True)
    for title in ("calls", "trials", "untuned, ms", "best, ms", "share"):
        table.add_column(title, justify="right")
    total = view.latency()
    rows = []
    for index, (task, progress) in enumerate(zip(view.tasks, view.progress, strict=True)):
        untuned = view.untuned.get(task.task_id)
        now = progress.best if isfinite(progress.best) else untuned
        rows.append((task.weight * (now or 0.0), index, task, progress, untuned))
    rows.sort(key=lambda row: (-row[0], row[1]))
    for part, index, task, progress, untuned in rows[:ROWS]:
        share = f"{part / total:.0%}" if isfinite(total) and total else ""
        mark = "bold" if index == view.current else None
        trials = f"{progress.trials}{'*' if not progress.open() else ''}"
        table.add_row(task.name, str(task.weight), trials, _ms(untuned), _ms(progress.best), share, style=mark)
    if len(rows) > ROWS:
        table.caption = f"and {len(rows) - ROWS} smaller tasks; * no program left to try"
    return table


def _ms(seconds: float | None) -> str:
    return "" if seconds is None or not isfinite(seconds) else f"{1e3 * seconds:.4g}"


@contextmanager
def shown_tuning(out: Output) -> Iterator[TuneProgress]:
    """A live table on stderr while inside; lines where stderr is no terminal; nothing in quiet mode."""
    if out.mode == "quiet":
        yield TuneProgress()
    elif not out.console.is_terminal:
        yield _Lines(out.console)
    else:
        with Live(console=out.console, refresh_per_second=4, transient=True) as live:
            yield _Live(live)
