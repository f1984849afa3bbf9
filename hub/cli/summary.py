"""The summary of a checkpoint's card, as `tchub pull` and `tchub info` print it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..registry.listed_facts import facts, kind_of
from ..registry.scores import results_of
from ..text import score_text

if TYPE_CHECKING:
    from rich.console import Console

    from ..registry import Entry
    from .output import Output


def draw_summary(entry: Entry, metrics: Mapping[str, Any], console: Console) -> None:
    """Name, facts and scores beside the baselines."""
    console.print(entry.name, style="bold", end=" ", highlight=False)
    console.print(entry.version, highlight=False)
    for key, value in facts(entry).items():
        console.print(f"  {key:<16} {value}", highlight=False)
    draw_scores(entry, metrics, console)


def next_step(entry: Entry, name: str) -> str:
    """The command that comes after a checkpoint is here: a CPU's programs are measured here, a GPU's travel to it.

    Args:
        entry: what a name led to.
        name: as it was given; a family or an old name leads somewhere else tomorrow.
    """
    called = entry.id if "@" in name else entry.name
    if kind_of(entry) == "gpu":
        return f"tchub bundle build --workload bert-tiny --target DEVICE --checkpoint {called} --output bundle.zip"
    return f"tchub adapt {called} --device local --budget 10%"


def warn_without_licence(lineage: Mapping[str, Any], out: Output) -> None:
    """Say that a checkpoint that was trained here has no licence, without which it cannot be published."""
    if not lineage.get("weights_licence"):
        out.note(
            "warning: the card names no licence of the weights; to name one, run the same command with --resume "
            "--weights-licence SPDX"
        )


def draw_scores(entry: Entry, metrics: Mapping[str, Any], console: Console) -> None:
    """Scores of metrics.json beside its baselines; without the file, those of the index."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column(f"  {metrics.get('split', 'held-out')} split")
    for title in ("top-1", "top-5", "pairwise"):
        table.add_column(title, justify="right")
    for line in results_of(entry, metrics):
        table.add_row(f"  {line['label']}", *(score_text(line[key]) for key in ("top1", "top5", "pairwise")))
    console.print(table)
