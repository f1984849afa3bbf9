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
# Cells that a column of wrapped texts needs.
_LEAST_WRAPPED = 16
# A pipe or a file is nobody's window: what reads the lines gets them whole.
_PIPED = ConsoleDimensions(10_000, 25)


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        title: its head.
        cells: one text a row; a rich text has a style of its own.
        number: set to the right, and never cut.
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
    def narrowest(self) -> int:
        """Cells that the column needs before others leave for it."""
        lines = (line for text in (self.title, *self.cells) for line in str(text).split("\n"))
        least = _LEAST_WRAPPED if self.wraps and self.least is None else self.least
        width = max(map(cell_len, lines))
        return width if least is None else min(least, width)


def fitting(columns: Sequence[Column], width: int) -> list[Column]:
    """Return the columns that fit into `width` cells."""
    kept = list(columns)
    while sum(c.narrowest + _GAP for c in kept) - _GAP > width and any(c.leaves is not None for c in kept):
        kept.remove(min((c for c in kept if c.leaves is not None), key=lambda c: c.leaves or 0))
    return kept


def table(columns: Sequence[Column], width: int, styles: Sequence[StyleType | None] = ()) -> Table:
    """Make the table of what fits into `width` cells; rich narrows the texts that are left.

    Args:
        columns: all of them, in order.
        width: of the terminal.
        styles: one a row, or none.
    """
    kept = fitting(columns, width)
    drawn = Table(box=None, pad_edge=False)
    for column in kept:
        justify, overflow = "right" if column.number else "left", "fold" if column.wraps else "ellipsis"
        drawn.add_column(column.title, justify=justify, overflow=overflow, no_wrap=column.number)
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
