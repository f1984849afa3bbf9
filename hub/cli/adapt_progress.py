"""Progress of `tchub adapt`: a bar a phase with the time that is left; without a terminal a line a phase."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, TaskID

from ..adaptation.settings import AdaptProgress
from .output import Output
from .terminal import bar_columns


class _Bars(AdaptProgress):
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


class _Lines(AdaptProgress):
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
        yield AdaptProgress() if out.mode == "quiet" else _Lines(out.console)
        return
    with Progress(
        *bar_columns(out.console.width), console=out.console, redirect_stdout=False, redirect_stderr=False
    ) as bars:
        shown = _Bars(bars)
        yield shown
        shown.finish()
