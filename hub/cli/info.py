"""`tchub info`: one checkpoint in full, or several side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .options import output_options
from .output import Output

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console
    from rich.table import Table

    from ..api import CheckpointInfo
    from ..registry import Entry

_IN_SUMMARY = ("base", "weights_licence", "data", "measured_on", "devices")
_MOST_COMPARED = 4


@click.command("info")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--card", is_flag=True, help="Print the whole model card (Markdown).")
@output_options
def command(names: tuple[str, ...], card: bool, out: Output) -> None:
    """Show a checkpoint: its card's summary, scores beside baselines, files with sha256, and lineage.

    Two to four names are shown side by side; as JSON they are a list.

    \b
    Examples:
      tchub info tcl-epyc
      tchub info tcl-epyc@1.0.0 --json
      tchub info tcl-epyc --card
      tchub info tcl-epyc tilenet-epyc tenset-mlp-epyc
    """
    from ..api import describe_checkpoint

    name, *others = names
    if len(names) > _MOST_COMPARED or (card and others):
        raise click.UsageError("one checkpoint has its card shown, and up to four are compared")
    if others:
        from .comparison import compare

        compare([describe_checkpoint(name) for name in names], out)
    else:
        _show(describe_checkpoint(name), name, card, out)


def _show(found: CheckpointInfo, name: str, card: bool, out: Output) -> None:
    from .summary import next_step

    entry = found.entry
    result = _as_json(found) | ({"card": found.card} if card else {})
    if card:
        out.data(result, lambda console: console.print(found.card, soft_wrap=True))
    else:
        out.data(result, lambda console: _draw(entry, found.metrics, console))
    if found.path is None:
        out.note(f"{entry.id} is not on this machine; this is what the index says")
    out.hint(next_step(entry, name) if found.path else f"tchub pull {name}")


def _as_json(found: CheckpointInfo) -> dict[str, Any]:
    entry = found.entry
    return entry.as_dict() | {
        "path": str(found.path) if found.path else None,
        "size": entry.size,
        "origin": entry.origin or None,
        "measured_on": list(entry.measured_on),
        "results": found.metrics.get("results", {}),
    }


def _draw(entry: Entry, metrics: Mapping[str, Any], console: Console) -> None:
    from rich.table import Table

    from ..text import size_text
    from .distill_text import device_table
    from .summary import draw_summary

    draw_summary(entry, metrics, console)
    devices = device_table(metrics.get("devices"))
    if devices.row_count:
        console.print(devices)
    table = Table(box=None, pad_edge=False)
    table.add_column("  file", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("sha256", overflow="fold")
    for file, record in sorted(entry.files.items()):
        table.add_row(f"  {file}", size_text(record.size), record.sha256)
    console.print(table)
    console.print(_lineage(entry))


def _lineage(entry: Entry) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 1))
    for key, value in entry.lineage.items():
        if key not in _IN_SUMMARY and value:
            table.add_row(Text(f"  {key:<16}"), Text("\n".join(_lines(value))))
    return table


def _lines(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [f"{key}: {one}" for key, one in value.items()]
    return [str(one) for one in value] if isinstance(value, list) else [str(value)]
