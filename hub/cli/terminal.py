"""Drawing on a terminal: a console that knows its window, and tables that fit into it.

A table that is too wide loses columns in a given order, and no number is cut to an unreadable piece.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console, ConsoleDimensions
from rich.table import Table
from rich.text import Text

from ..text import Column, Part, printable

if TYPE_CHECKING:
    from rich.style import StyleType

_GAP = 2
# Cells that a column of wrapped texts needs.
_LEAST_WRAPPED = 16
# A pipe or a file is nobody's window: what reads the lines gets them whole.
_PIPED = ConsoleDimensions(10_000, 25)


def fitting(columns: Sequence[Column], width: int) -> list[Column]:
    """Return the columns that fit into `width` cells."""
    kept = list(columns)
    while sum(_narrowest(c) + _GAP for c in kept) - _GAP > width and any(c.leaves is not None for c in kept):
        kept.remove(min((c for c in kept if c.leaves is not None), key=lambda c: c.leaves or 0))
    return kept


def _narrowest(column: Column) -> int:
    """Return the cells that a column needs before others leave for it."""
    lines = (line for text in (column.title, *column.cells) for line in str(text).split("\n"))
    width, least = max(map(cell_len, lines)), column.least
    if least is None:
        least = _LEAST_WRAPPED if column.wraps else width
    return min(least, width)


def table(columns: Sequence[Column], width: int, styles: Sequence[StyleType | None] = ()) -> Table:
    """Make the table of what fits into `width` cells; rich narrows the texts that are left.

    Args:
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

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a text without control characters, by which a name of a log or a corpus could write what it likes."""
        return super().render_str(printable(text), **options)

    def show(self, part: Part) -> None:
        """Print a line, a table of those columns that fit, or facts, which a terminal wraps beside their names."""
        if isinstance(part, str):
            self.print(part, soft_wrap=True)
        elif not isinstance(part, Mapping):
            self.print(table(part, self.width))
        elif self.is_terminal:
            grid = Table.grid(padding=(0, 2, 0, 0))
            grid.add_column(no_wrap=True)
            grid.add_column(overflow="fold")
            for name, fact in part.items():
                grid.add_row(Text(name, "bold"), str(fact))
            self.print(grid)
        else:
            widest = max(map(len, part), default=0)
            for name, fact in part.items():
                self.print(f"{name:<{widest}}  {fact}")
