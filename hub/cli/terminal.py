"""Drawing on a terminal: a console that knows its window, and tables that fit into it.

A table that is too wide loses columns in a given order, and no number is cut to an unreadable piece.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console, ConsoleDimensions
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.style import StyleType

_GAP = 2
# Cells of a text that is cut or wrapped because no column is left to leave.
_LEAST_TEXT, _LEAST_WRAPPED = 8, 16
# A pipe or a file is nobody's window: what reads the lines gets them whole.
_PIPED = ConsoleDimensions(10_000, 25)


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        title: its head.
        cells: one text a row; a rich text has a style of its own.
        number: set to the right.
        leaves: columns leave a table that is too wide in this order, smallest first; None stays.
        least: cells that this column is cut to before any leaves; None is cut only when none is left to leave.
        wraps: texts that are too wide are broken into lines instead of cut.
    """

    title: str
    cells: Sequence[str | Text]
    number: bool = False
    leaves: int | None = None
    least: int | None = None
    wraps: bool = False

    @property
    def width(self) -> int:
        """Cells of the widest text."""
        lines = (line for text in (self.title, *self.cells) for line in str(text).split("\n"))
        return max(map(cell_len, lines))

    @property
    def narrowest(self) -> int:
        """Cells that the column needs before others leave for it."""
        least = _LEAST_WRAPPED if self.wraps and self.least is None else self.least
        return self.width if least is None else min(least, self.width)


def fitting(columns: Sequence[Column], width: int) -> tuple[list[Column], dict[str, int]]:
    """Choose the columns that fit into `width` cells, and the width of each by title."""
    kept, gaps = list(columns), _GAP * (len(columns) - 1)
    while sum(c.narrowest for c in kept) + gaps > width and (leaving := [c for c in kept if c.leaves is not None]):
        kept.remove(min(leaving, key=lambda c: c.leaves or 0))
        gaps -= _GAP
    widths = {column.title: column.width for column in kept}
    shrinking = [(column, column.narrowest) for column in kept]
    wrapped = [(column, _LEAST_WRAPPED) for column in kept if column.wraps]
    texts = [(column, _LEAST_TEXT) for column in kept if column.least is None and not column.number]
    for column, least in (*shrinking, *wrapped, *texts):
        excess = sum(widths.values()) + gaps - width
        widths[column.title] -= min(max(0, excess), max(0, widths[column.title] - least))
    return kept, widths


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
            column.title, justify="right" if column.number else "left", no_wrap=not column.wraps, overflow="fold"
            if column.wraps else "ellipsis", width=widths[column.title],
        )  # fmt: skip
    for row, cells in enumerate(zip(*(column.cells for column in kept), strict=True)):
        drawn.add_row(*cells, style=styles[row] if styles else None)
    return drawn


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

    def table(self, *columns: Column, styles: Sequence[StyleType | None] = ()) -> None:
        """Print the table of those columns that fit."""
        self.print(table(columns, self.width, styles))

    def facts(self, facts: Mapping[str, object], indent: int = 0) -> None:
        """Print a line for each fact, the names in a column of their own; a terminal wraps the facts beside them."""
        widest = indent + max(map(len, facts), default=0)
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(width=widest, no_wrap=True)
        grid.add_column(overflow="fold")
        for name, fact in facts.items():
            title = f"{'':{indent}}{name:<{widest - indent}}"
            if self.is_terminal:
                grid.add_row(Text(title, "bold"), str(fact))
            else:
                self.print(f"{title}  {fact}")
        if grid.rows:
            self.print(grid)
