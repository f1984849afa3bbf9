"""The bar of programs that are being measured for a corpus."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .output import Output

if TYPE_CHECKING:
    from ..tuning.collect import CollectProgress


@contextmanager
def shown_collecting(out: Output, programs: int) -> Iterator[Callable[[CollectProgress], None]]:
    """A bar on stderr for people, from the first program on; gives what is to be told after each."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    described = TextColumn("{task.description}", markup=False)
    columns = (described, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bars = Progress(*columns, console=out.console, disable=out.mode != "human", transient=True)
    bar = bars.add_task("collecting", total=programs)

    def tell(p: CollectProgress) -> None:
        bars.start()
        bars.update(bar, completed=p.done, total=max(p.total, p.done), description=f"{p.phase} {p.task[:32]}")
        if p.done >= p.total:
            bars.stop()

    try:
        yield tell
    finally:
        bars.stop()
