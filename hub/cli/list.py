"""`tchub list`: the zoo in one table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .options import output_options
from .output import Output

if TYPE_CHECKING:
    from rich.console import Console

    from ..registry import Entry

# Columns of a terminal that the whole table needs to stay readable.
_WIDE = 160
# Nobody's window: what reads the lines gets them whole.
_PIPED = 220
_SCORES = ("top1", "top5", "pairwise")


@click.command("list")
@click.option("--search", default="", metavar="TEXT", help="Only those in whose facts every word occurs, e.g. nvidia.")
@click.option("--family", metavar="F", help="Only checkpoints of this device family, e.g. epyc.")
@click.option("--arch", metavar="A", help="Only checkpoints of this architecture, e.g. tcl.")
@click.option("--kind", type=click.Choice(["cpu", "gpu"]), help="Only checkpoints for this kind of device.")
@click.option("--local", is_flag=True, help="Only checkpoints adapted on this machine.")
@click.option(
    "--sort", default="family", show_default=True, help="The order of the lines; scores of one family compare.",
    type=click.Choice(["family", "name", *_SCORES, "parameters", "size"]),
)  # fmt: skip
@output_options
def command(
    search: str, family: str | None, arch: str | None, kind: str | None, local: bool, sort: str, out: Output
) -> None:
    """List the checkpoints: published, fetched, and adapted on this machine.

    \b
    Examples:
      tchub list
      tchub list --family epyc
      tchub list --kind gpu --search "turing measured" --sort size
      tchub list --local --json
    """
    from ..api import list_checkpoints
    from ..site.catalogue import listing
    from ..site.query import arranged, found

    entries = arranged(found(list_checkpoints(family=family, arch=arch, local=local), search, kind), sort)
    out.data([listing(entry) for entry in entries], lambda console: draw(entries, console))
    if not entries:
        out.note("no checkpoint matches" if search or family or arch or kind or local else "the index is empty")
        return
    if sort in _SCORES and len({entry.family for entry in entries}) > 1:
        out.note("each family was judged on test programs of its own: scores of different families do not compare")
    names = {entry.name for entry in entries}
    out.hint(
        f"tchub info {entries[-1].name}" if local else f"tchub pull {names.pop()}" if len(names) == 1 else "tchub pull"
    )


def draw(entries: list[Entry], console: Console) -> None:
    """The table; a terminal too narrow for all of it gets the columns by which one chooses."""
    from rich.table import Table

    from ..text import data_text, family_text, number_text, score_text, size_text

    if not console.is_terminal:
        console.width = max(console.width, _PIPED)
    short = console.width < _WIDE
    table = Table(box=None, pad_edge=False)
    for title in ("name", "version"):
        table.add_column(title, no_wrap=True)
    for title in () if short else ("arch", "features"):
        table.add_column(title)
    table.add_column("device", no_wrap=short)
    for title in (*(() if short else ("parameters",)), "size", "top-1", "top-5", "pairwise"):
        table.add_column(title, justify="right", no_wrap=True)
    for title in () if short else ("data", "licence"):
        table.add_column(title)
    for e in entries:
        version = e.version + (" (deprecated)" if e.deprecated else "")
        scores = [score_text(e.metrics.get(key)) for key in _SCORES]
        cells = [e.name, version, family_text(e), size_text(e.size), *scores]
        if not short:
            cells[2:2] = e.arch, e.feature_schema
            cells.insert(5, number_text(e.parameters))
            cells += data_text(e.data, device=False), f"{e.weights_licence}, data {e.data_licence}"
        table.add_row(*cells)
    console.print(table)
