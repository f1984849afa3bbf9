"""`tchub info`: one checkpoint in full."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .options import output_options
from .output import Output

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from ..registry import Entry

_IN_SUMMARY = ("base", "weights_licence", "data", "measured_on", "devices")


@click.command("info")
@click.argument("name")
@click.option("--card", is_flag=True, help="Print the whole model card (Markdown).")
@output_options
def command(name: str, card: bool, out: Output) -> None:
    """Show a checkpoint: its card's summary, scores beside baselines, files with sha256, and lineage.

    \b
    Examples:
      tchub info tcl-epyc
      tchub info tcl-epyc@1.0.0 --json
      tchub info tcl-epyc --card
    """
    from ..api import describe_checkpoint

    found = describe_checkpoint(name)
    entry = found.entry
    result = entry.as_dict() | {
        "path": str(found.path) if found.path else None,
        "size": entry.size,
        "origin": entry.origin or None,
        "measured_on": list(entry.measured_on),
        "results": found.metrics.get("results", {}),
    }
    if card:
        result["card"] = found.card
        out.data(result, lambda console: console.print(found.card, markup=False, soft_wrap=True))
    else:
        out.data(result, lambda console: _draw(entry, found.metrics, console))
    if found.path is None:
        out.note(f"{entry.id} is not on this machine; this is what the index says")
    out.hint(f"tchub adapt {name} --device local --budget 10%" if found.path else f"tchub pull {name}")


def _draw(entry: Entry, metrics: Mapping[str, Any], console: Console) -> None:
    from rich.table import Table

    from .distill_text import device_table
    from .summary import draw_summary
    from .text import size_text

    draw_summary(entry, metrics, console)
    if metrics.get("devices"):
        console.print(device_table(metrics["devices"]))
    table = Table(box=None, pad_edge=False)
    table.add_column("  file", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("sha256", overflow="fold")
    for file, record in sorted(entry.files.items()):
        table.add_row(f"  {file}", size_text(record.size), record.sha256)
    console.print(table)
    for key, value in entry.lineage.items():
        if key not in _IN_SUMMARY and value is not None:
            console.print(f"  {key}: {value}", markup=False, highlight=False)
