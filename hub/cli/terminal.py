"""Drawing on a terminal: a console that knows its window, and tables that fit into it.

A table that is too wide loses columns in a given order, and no number is cut to an unreadable piece.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console, ConsoleDimensions
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

if TYPE_CHECKING:
    from rich.style import StyleType

_GAP = 2
# Cells of a text that is cut because no column is left to leave.
_LEAST_TEXT = 8
# A pipe or a file is nobody's window: what reads the lines gets them whole.
_PIPED = ConsoleDimensions(10_000, 25)


class Terminal(Console):
    """A console as wide as the window that it writes to.

    Rich asks standard input, output and error for their window, which may lead into files while another descriptor
    leads to the terminal.
    """

    @property
    def size(self) -> ConsoleDimensions:
        """Columns and lines of the window."""
        if not self.is_terminal:
            return _PIPED
        try:
            columns, lines = os.get_terminal_size(self.file.fileno())
        except (OSError, ValueError):  # no terminal, or not even a file
            return super().size
        if not columns or self._width is not None or "COLUMNS" in self._environ:
            return super().size
        return ConsoleDimensions(columns, lines)


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        title: its head.
        cells: one text a row.
        number: set to the right.
        leaves: columns leave a table that is too wide in this order, smallest first; None stays.
        least: cells that this column is cut to before any leaves; None is cut only when none is left to leave.
    """

    title: str
    cells: Sequence[str]
    number: bool = False
    leaves: int | None = None
    least: int | None = None

    @property
    def width(self) -> int:
        """Cells of the widest text."""
        return max(map(cell_len, (self.title, *self.cells)))


def fitting(columns: Sequence[Column], width: int) -> tuple[list[Column], dict[str, int]]:
    """Choose the columns that fit into `width` cells, and the width of each by title."""
    kept = list(columns)
    while _least(kept) > width and any(column.leaves is not None for column in kept):
        kept.remove(min((c for c in kept if c.leaves is not None), key=lambda c: c.leaves or 0))
    widths = {column.title: column.width for column in kept}
    shrinking = [(column, column.least) for column in kept if column.least is not None]
    texts = [(column, _LEAST_TEXT) for column in kept if column.least is None and not column.number]
    for column, least in (*shrinking, *texts):
        excess = sum(widths.values()) + _GAP * (len(kept) - 1) - width
        widths[column.title] -= min(max(0, excess), max(0, column.width - least))
    return kept, widths


def _least(columns: Sequence[Column]) -> int:
    narrowest = (c.width if c.least is None else min(c.least, c.width) for c in columns)
    return sum(narrowest) + _GAP * (len(columns) - 1)


def bar_columns(width: int) -> list[ProgressColumn]:
    """Make the columns of progress bars whose tasks have a description and a field `note`.

    A narrow terminal loses the bar first, then the time spent and the note; the counts and the time left stay.
    """
    named = max(10, min(26, width - 22))
    bar = width - named - 40
    columns: list[ProgressColumn] = [TextColumn(f"{{task.description:<{named}.{named}}}", markup=False)]
    columns += [BarColumn(bar_width=min(40, bar))] if bar >= 4 else []
    columns.append(MofNCompleteColumn())
    columns += [TimeElapsedColumn()] if width >= named + 40 else []
    columns.append(TimeRemainingColumn())
    return [*columns, TextColumn("{task.fields[note]}", markup=False)] if width >= named + 30 else columns


def table(columns: Sequence[Column], width: int, styles: Sequence[StyleType | None] = ()) -> Table:
    """Make the table of what fits into `width` cells.

    Args:
        columns: all of them, in order.
        width: of the terminal.
        styles: one a row, or none.
    """
    kept, widths = fitting(columns, width)
    drawn = Table(box=None, pad_edge=False)
    for column in kept:
        drawn.add_column(
            column.title, justify="right" if column.number else "left", no_wrap=True, width=widths[column.title]
        )
    for row, cells in enumerate(zip(*(column.cells for column in kept), strict=True)):
        drawn.add_row(*cells, style=styles[row] if styles else None)
    return drawn
