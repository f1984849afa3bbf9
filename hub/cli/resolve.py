"""`tchub resolve`: which checkpoint a name, a family or a device leads to, and why every other one does not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from .options import output_options
from .output import Output

if TYPE_CHECKING:
    from rich.console import Console

    from ...zoo.devices import Device
    from ..registry import Resolution, Verdict

# Columns of a terminal from which on numbers stand beside the reasons.
_WIDE = 120


@click.command("resolve")
@click.argument("name", required=False)
@click.option("--device", metavar="D", help="local, or a name of `tchub devices`. Default without a NAME: local.")
@click.option("--all", "every_version", is_flag=True, help="Older versions too.")
@output_options
def command(name: str | None, device: str | None, every_version: bool, out: Output) -> None:
    """Show which checkpoint `pull`, `load` and `adapt` would take, and why every other one is passed over.

    NAME is a checkpoint, or a device family for the best checkpoint of it; without one, the device decides: by
    the rank of its distance, then by what was measured on it, then by the spec sheets. Nothing is fetched.

    \b
    Examples:
      tchub resolve --device local
      tchub resolve k80
      tchub resolve --device graviton2 --all --json
      tchub pull $(tchub resolve --device a100 --quiet)
    """
    from ..api import list_checkpoints, resolve
    from ..registry.resolve import other_versions

    found = resolve(name, device=_device(device))
    verdicts = list(found.verdicts)
    if every_version:
        verdicts += other_versions(list_checkpoints(), verdicts)
    result = {
        "name": found.entry.name,
        "version": found.entry.version,
        "warnings": list(found.warnings),
        "verdicts": [verdict.as_dict() for verdict in verdicts],
    }
    if out.mode == "quiet":
        out.data(found.entry.id)
    else:
        out.data(result, lambda console: draw(found, verdicts, console))
    out.hint(f"tchub pull {found.entry.id}")


def _device(text: str | None) -> Device | None:
    """None for this machine, which is detected only where the choice needs it."""
    from ...zoo.devices import get_device

    return None if text in (None, "local") else get_device(text)


def draw(found: Resolution, verdicts: Iterable[Verdict], console: Console) -> None:
    """The choice, then a line for each one that was passed over."""
    from rich.table import Table

    chosen, *others = verdicts
    console.print(found.entry.id, style="bold", highlight=False)
    console.print(f"  {chosen.reason}", highlight=False)
    if not others:
        return
    short = console.width < _WIDE
    table = Table(box=None, pad_edge=False)
    table.add_column("passed over", no_wrap=True)
    for title in () if short else ("rank", "spec sheets", "top-1", "pairwise"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("why")
    for verdict in others:
        table.add_row(verdict.id, *(() if short else _numbers(verdict)), verdict.passed_over)
    console.print(table)


def _numbers(verdict: Verdict) -> tuple[str, str, str, str]:
    """Rank, gap, and the scores on this device or its family."""
    from ..text import score_text

    rank = "-" if verdict.rank is None else str(verdict.rank)
    gap = "-" if verdict.gap is None else f"{2**verdict.gap:.2g}x"
    found = verdict.measured
    return rank, gap, score_text(found and found.top1), score_text(found and found.pairwise)
