"""The bar of programs that are being measured for a corpus."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from .output import Output

if TYPE_CHECKING:
    from ..tuning.collect import CollectProgress


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
