"""Progress of adapt, tune, collect and bundle: a display on a terminal, lines elsewhere, and the time that is left."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from math import isfinite
from pathlib import Path
from typing import Any

from rich import progress as rich_progress
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from ..adaptation.config import AdaptProgress
from ..text import Column
from ..tuning.progress import SessionView, TuneProgress
from .output import Output, native_output_logged
from .terminal import table

ROWS = 16
# Lines of the display besides the tasks: head, caption, bar, state, and a line for the shell.
_OTHER_LINES = 5
# Without a terminal (a log file, CI): one line after so many seconds.
LINE_EVERY = 15.0
# From this width on, bars and notes stand beside the counts.
_WIDE = 70
# The time left is that of the steps left, at the pace of so many last seconds.
_PACE_SECONDS = 600.0


class Display(AdaptProgress, TuneProgress):
    """Listener of every command that takes long; this one counts, and shows nothing.

    `start` and `advance` are phases of so many steps, `stage` and `session` those of a tuning run.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bars = rich_progress.Progress(console=console, speed_estimate_period=_PACE_SECONDS)
        self.view: SessionView | None = None

    def note(self, text: str) -> None:
        self.console.print(text)  # above a display, where it stays; a quiet console prints nothing

    def start(self, phase: str, total: int) -> None:
        for bar in self.bars.tasks[-1:]:
            self.bars.stop_task(bar.id)
        self.bars.add_task(phase, total=total, failed=0, note="")

    def advance(self, failed: bool = False) -> None:
        for bar in self.bars.tasks[-1:]:
            self._update(int(bar.completed) + 1, bar.fields["failed"] + failed)

    def count(self, text: str, done: int, total: int, failed: int = 0) -> None:
        """Show that so many programs of all are done, and what is being done."""
        if not self.bars.tasks:
            self.start(text, total)
        bar = self.bars.tasks[-1]
        bar.description, bar.total = text, max(total, done)
        self._update(done, failed)

    def stage(self, text: str) -> None:
        for bar in self.bars.task_ids:
            self.bars.remove_task(bar)
        self.view = None

    def session(self, label: str, view: SessionView) -> None:
        if self.view is not view:
            Display.stage(self, label)
            Display.start(self, label, view.trials)
            self.view = view
        self._update(view.done)

    def _update(self, done: int, failed: int = 0) -> None:
        note = f"{failed} failed" if failed else ""
        self.bars.update(self.bars.task_ids[-1], completed=done, failed=failed, note=note)


class Lines(Display):
    """Prints a line now and then, where there is no terminal."""

    _last = 0.0

    def start(self, phase: str, total: int) -> None:
        super().start(phase, total)
        self.note(f"{phase}: {total} to do" if total > 1 else phase)

    def stage(self, text: str) -> None:
        super().stage(text)
        self.note(text)

    def session(self, label: str, view: SessionView) -> None:
        super().session(label, view)
        if self._due():
            left = self.bars.tasks[-1].time_remaining
            time_left = [] if left is None else [f"{timedelta(seconds=left)} left"]
            self.note(", ".join([f"{label}: {view.done}/{view.trials} programs", *_best(view), *time_left]))

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

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._spinner = Spinner("dots")

    def stage(self, text: str) -> None:
        super().stage(text)
        self._spinner.update(text=_line(text))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if (view := self.view) is not None:
            yield task_table(view, options.max_width, min(ROWS, max(1, options.size.height - _OTHER_LINES)))
        if self.bars.tasks:
            self.bars.columns = tuple(bar_columns(options.max_width))
            yield self.bars.make_tasks_table(self.bars.tasks)
        else:
            yield self._spinner
        if view is not None:
            yield _line(", ".join([*_best(view), view.phase]))


@contextmanager
def shown_progress(output: Output, folder: str | Path | None = None) -> Iterator[Display]:
    """Show progress on stderr while inside: a live display on a terminal, else lines; nothing in quiet mode.

    Args:
        folder: takes the log of what native code writes, see `native_output_logged`; None: none is kept.
    """
    with nullcontext() if folder is None else native_output_logged(output, folder):
        if output.mode == "quiet":
            yield Display(output.console)
        elif not output.console.is_interactive:
            yield Lines(output.console)
        else:
            console = output.console
            screen = Screen(console)
            # Texts that Python prints meanwhile are for the log file, where its descriptors lead, and not for rich.
            elsewhere: Any = {"redirect_stdout": False, "redirect_stderr": False}
            with Live(screen, console=console, refresh_per_second=4, transient=True, **elsewhere):
                yield screen


def bar_columns(width: int) -> list[rich_progress.ProgressColumn]:
    """Make the columns of progress bars whose tasks have a field `note`; a narrow terminal has no bar and no note."""
    named = max(10, min(26, width - 22))
    name = rich_progress.TextColumn(f"{{task.description:<{named}.{named}}}", markup=False)
    count = rich_progress.MofNCompleteColumn()
    if width < _WIDE:
        return [name, count, rich_progress.TimeRemainingColumn()]
    bar = rich_progress.BarColumn(bar_width=min(40, width - 66))
    note = rich_progress.TextColumn("{task.fields[note]}", markup=False)
    return [name, bar, count, rich_progress.TimeElapsedColumn(), rich_progress.TimeRemainingColumn(), note]


def task_table(view: SessionView, width: int, rows: int = ROWS) -> Table:
    """Make the table of the heaviest tasks: trials, untuned and best latency, share of the network."""
    total, lines = view.latency(), []
    for index, (task, progress) in enumerate(zip(view.tasks, view.progress, strict=True)):
        untuned = view.untuned.get(task.task_id)
        part = task.weight * ((progress.best if isfinite(progress.best) else untuned) or 0.0)
        share = f"{part / total:.0%}" if isfinite(total) and total else ""
        trials = f"{progress.trials}{'' if progress.open() else '*'}"
        lines.append((-part, index, task.name[:44], str(task.weight), trials, _ms(untuned), _ms(progress.best), share))
    shown = sorted(lines)[:rows]
    _, indices, names, calls, trials, untuned, best, share = zip(*shown, strict=True)
    columns = [
        Column("task", names, least=12),
        Column("calls", calls, True, leaves=1), Column("trials", trials, True, leaves=4),
        Column("untuned, ms", untuned, True, leaves=2), Column("best, ms", best, True),
        Column("share", share, True, leaves=3),
    ]  # fmt: skip
    drawn = table(columns, width, ["bold" if index == view.current else None for index in indices])
    if len(lines) > rows:
        drawn.caption = f"and {len(lines) - rows} smaller tasks"
        drawn.caption_justify = "left"
    return drawn


def _line(text: str) -> Text:
    """Return a text that is cut at the window's edge: a second line would make the display jump."""
    return Text(text, no_wrap=True, overflow="ellipsis")


def _best(view: SessionView) -> list[str]:
    best = _ms(view.latency())
    return [f"sum of tasks {best} ms"] if best else []


def _ms(seconds: float | None) -> str:
    return "" if seconds is None or not isfinite(seconds) else f"{1e3 * seconds:.4g}"
