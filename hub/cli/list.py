"""`tchub list`: the zoo in one table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .options import output_options
from .output import Output

if TYPE_CHECKING:
    from rich.console import Console

    from ..registry import Entry

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
    from ..registry.catalogue import listing
    from ..registry.query import arranged, found

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
    from ..text import data_text, number_text, score_text, size_text
    from .terminal import Column, table

    scores = {
        title: [score_text(e.metrics.get(key)) for e in entries]
        for key, title in zip(_SCORES, ("top-1", "top-5", "pairwise"), strict=True)
    }
    columns = [
        Column("name", [e.name for e in entries]),
        Column("version", [e.version + (" (deprecated)" if e.deprecated else "") for e in entries], leaves=7),
        Column("arch", [e.arch for e in entries], leaves=5),
        Column("features", [e.feature_schema for e in entries], leaves=3),
        Column("device", [e.family for e in entries]),
        Column("origin", [e.origin or "" for e in entries], leaves=8),
        Column("parameters", [number_text(e.parameters) for e in entries], number=True, leaves=4),
        Column("size", [size_text(e.size) for e in entries], number=True, leaves=6),
        *(Column(title, texts, number=True, leaves=9 if title == "top-5" else None) for title, texts in scores.items()),
        Column("data", [data_text(e.data, device=False) for e in entries], leaves=2),
        Column("licence", [f"{e.weights_licence}, data {e.data_licence}" for e in entries], leaves=1),
    ]
    console.print(table(columns, console.width))
