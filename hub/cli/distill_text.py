"""What `tchub distill` says: progress while it learns, and a table of devices at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..registry.describe import as_object
from ..registry.fields import is_number
from ..text import score_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from .output import Output

_PHASES = {"train": "first device", "learn": "column learns", "distill": "base learns"}


def progress(out: Output) -> Callable[[str, str, dict[str, Any]], None]:
    """A listener that writes a line an epoch, and one a device."""

    def hear(corpus: str, phase: str, facts: dict[str, Any]) -> None:
        out.note(f"{corpus}: {_done(facts) if phase == 'done' else _epoch(phase, facts)}")

    return hear


def _epoch(phase: str, entry: Mapping[str, float]) -> str:
    said = f"{_PHASES[phase]}, epoch {int(entry['epoch']) + 1}  loss {entry['loss']:.4f}"
    if "val_pairwise" in entry:
        said += f"  val pairwise {entry['val_pairwise']:.4f}"
    return f"{said}  {entry['seconds']:.1f} s"


def _done(device: Mapping[str, Any]) -> str:
    scores = ", ".join(f"{who} {score_text(row['pairwise'])}" for who, row in device["test"].items())
    gate = "" if device["gate"] is None else f", gate {device['gate']:.2f}"
    said = f"learnt {device['programs']:,} programs of {device['tasks']} tasks{gate}; test pairwise: {scores or '-'}"
    return f"{said}; warning: {device['warning']}" if device["warning"] else said


def draw(result: Mapping[str, Any], console: Console) -> None:
    """Every device: what the base knew of it when it was learnt, and what it knows now."""
    console.print(f"{result['name']}@{result['version']}: {result['parameters']:,} parameters", highlight=False)
    console.print(device_table(result["devices"]))
    for device in result["added"]:
        if device["warning"]:
            console.print(f"warning: {device['corpus']}: {device['warning']}", highlight=False, soft_wrap=True)
    console.print(f"written to {result['path']}", highlight=False, soft_wrap=True)


def device_table(devices: object) -> Table:
    """Of `metrics.json`: pairwise accuracy on the test tasks of every device, in the order of learning.

    What has not the shape of a device gets no row.
    """
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("  pairwise by device")
    for title in ("its column", "then", "now", "forgotten"):
        table.add_column(title, justify="right")
    for row in filter(None, map(as_object, devices if isinstance(devices, list) else ())):
        column, then, now = (as_object(row.get(key)).get("pairwise") for key in ("column", "learnt", "now"))
        lost = f"{then - now:+.3f}" if is_number(then) and is_number(now) else "-"
        table.add_row(f"  {row.get('corpus', '-')}", score_text(column), score_text(then), score_text(now), lost)
    return table
