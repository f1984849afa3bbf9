"""`tchub list`: the zoo in one table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .options import output_options
from .output import Output

if TYPE_CHECKING:
    from rich.console import Console

    from ..registry import Entry

# Columns of a terminal that the whole table needs to stay readable.
_WIDE = 150


@click.command("list")
@click.option("--family", metavar="F", help="Only checkpoints of this device family, e.g. epyc.")
@click.option("--arch", metavar="A", help="Only checkpoints of this architecture, e.g. tcl.")
@click.option("--local", is_flag=True, help="Only checkpoints adapted on this machine.")
@output_options
def command(family: str | None, arch: str | None, local: bool, out: Output) -> None:
    """List the checkpoints: published, fetched, and adapted on this machine.

    \b
    Examples:
      tchub list
      tchub list --family epyc
      tchub list --local --json
    """
    from ..api import list_checkpoints

    entries = list_checkpoints(family=family, arch=arch, local=local)
    out.data([row(entry) for entry in entries], lambda console: draw(entries, console))
    if not entries:
        out.note("no checkpoint matches" if family or arch or local else "the index is empty")
    elif local:
        out.hint(f"tchub info {entries[-1].name}")
    else:
        names = {entry.name for entry in entries}
        out.hint(f"tchub pull {names.pop()}" if len(names) == 1 else "tchub pull")


def row(entry: Entry) -> dict[str, Any]:
    """The JSON form of one line."""
    scores = {key: entry.metrics.get(key) for key in ("top1", "top5", "pairwise")}
    return {
        "name": entry.name,
        "version": entry.version,
        "arch": entry.arch,
        "family": entry.family,
        "origin": entry.origin or None,
        "measured_on": list(entry.measured_on),
        "parameters": entry.parameters,
        "feature_schema": entry.feature_schema,
        "size": entry.size,
        **scores,
        "data": dict(entry.data),
        "weights_licence": entry.weights_licence,
        "data_licence": entry.data_licence,
        "local": entry.is_local,
        "deprecated": entry.deprecated,
    }


def draw(entries: list[Entry], console: Console) -> None:
    """The table; a terminal too narrow for all of it gets the columns by which one chooses."""
    from rich.table import Table

    from .text import data_text, family_text, number_text, score_text, size_text

    short = console.is_terminal and console.width < _WIDE
    table = Table(box=None, pad_edge=False)
    for title in ("name", "version"):
        table.add_column(title, no_wrap=True)
    for title in () if short else ("arch", "features"):
        table.add_column(title)
    table.add_column("device", no_wrap=short)
    for title in ("size", "top-1", "top-5") if short else ("parameters", "size", "top-1", "top-5"):
        table.add_column(title, justify="right", no_wrap=True)
    for title in () if short else ("data", "licence"):
        table.add_column(title)
    for e in entries:
        version = e.version + (" (deprecated)" if e.deprecated else "")
        scores = [score_text(e.metrics.get(key)) for key in ("top1", "top5")]
        if short:
            table.add_row(e.name, version, family_text(e), size_text(e.size), *scores)
            continue
        data, licence = data_text(e.data, device=False), f"{e.weights_licence}, data {e.data_licence}"
        sizes = number_text(e.parameters), size_text(e.size)
        table.add_row(e.name, version, e.arch, e.feature_schema, family_text(e), *sizes, *scores, data, licence)
    console.print(table)
