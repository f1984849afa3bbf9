"""Texts of numbers and facts for people, the same in every command and on every page, and the parts of an output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.text import Text

_STEP = 1024.0


def size_text(size: int) -> str:
    """Return a size as `361 KiB` or `1.2 MiB`."""
    value, units = float(size), ["B", "KiB", "MiB", "GiB"]
    while value >= _STEP and len(units) > 1:
        value /= _STEP
        units.pop(0)
    return f"{value:.0f} {units[0]}" if value >= 100 or units[0] == "B" else f"{value:.1f} {units[0]}"


def printable(text: str) -> str:
    """Return a text without control characters but line breaks and tabs."""
    return "".join(letter for letter in text if letter.isprintable() or letter in "\n\t")


def number_text(value: int | None) -> str:
    """Return `191,813`, or `-` for a number that is not known."""
    return "-" if value is None else f"{value:,}"


def score_text(value: object) -> str:
    """Return `0.903`, or `-` for a number that was not measured."""
    return f"{value:.3f}" if isinstance(value, int | float) else "-"


def data_text(data: Mapping[str, Any], *, device: bool = True) -> str:
    """Return `12,034 programs of 104 tasks on epyc-turin`, or without the device."""
    parts = [f"{data[key]:,} {key}" for key in ("programs", "tasks") if isinstance(data.get(key), int)]
    where = f" on {data['device']}" if device and data.get("device") else ""
    return (" of ".join(parts) or str(data.get("name") or "-")) + where


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
