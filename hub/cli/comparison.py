"""Checkpoints side by side, as `tchub info A B` prints them: the lines of the catalogue's comparison."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..registry.catalogue import comparable, record
from ..registry.scores import TITLES
from ..text import score_text
from .output import Output

if TYPE_CHECKING:
    from rich.console import Console

    from ..api import CheckpointInfo


def compare(found: Sequence[CheckpointInfo], out: Output) -> None:
    """Print the checkpoints as columns; as JSON, a list of what the catalogue holds of each."""
    records = [record(one.entry, one.metrics) for one in found]
    out.data(records, lambda console: _draw(records, console))
    if not comparable(records):
        out.note("these were judged on different test programs: their scores cannot be held against each other")
    for one in found:
        if one.path is None:
            out.note(f"{one.entry.id} is not on this machine; this is what the index says")


def _draw(records: list[dict[str, Any]], console: Console) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    for one in records:
        table.add_column(f"{one['name']} {one['version']}", overflow="fold")
    for title, texts in _lines(records):
        table.add_row(title, *texts)
    console.print(table)


def _lines(records: list[dict[str, Any]]) -> Iterator[tuple[str, list[str]]]:
    for key, title in TITLES.items():
        if any(one["scores"][key] is not None for one in records):
            yield title, [_score(one, key) for one in records]
    yield "judged on", [one["judged_on"] or "-" for one in records]
    for label in dict.fromkeys(label for one in records for label in one["facts"]):
        yield label, [one["facts"].get(label, "-") for one in records]


def _score(one: dict[str, Any], key: str) -> str:
    seeds = one["seeds"].get(key)
    spread = f" ({one['seeds']['count']} seeds: {seeds['mean']:.3f} ± {seeds['stdev']:.3f})" if seeds else ""
    return score_text(one["scores"][key]) + spread
