"""The parts of which a command's output for people is made: lines, facts, tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
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


# A line, facts by name, or a table.
Part = str | Mapping[str, object] | Sequence[Column]
