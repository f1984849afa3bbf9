"""The summary of a checkpoint's card, as `tchub pull` and `tchub info` print it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .text import data_text, family_text, number_text, score_text, size_text

if TYPE_CHECKING:
    from rich.console import Console

    from ..registry import Entry

_BASELINES = {
    "model": "this checkpoint",
    "random": "random choice",
    "xgboost": "XGBoost on PerStoreFeature",
    "ten_percent": "same, from 10% random data",
    "base": "before adapting",
}


def facts(entry: Entry) -> dict[str, str]:
    """What the checkpoint is, one line each."""
    lines = {
        "architecture": entry.arch,
        "parameters": number_text(entry.parameters),
        "device family": family_text(entry, devices=True),
        "size": size_text(entry.size),
        "trained on": data_text(entry.data),
        "weights licence": entry.weights_licence,
        "data licence": entry.data_licence,
        "features": entry.feature_schema,
        "TVM": entry.tvm or "-",
        "adapted from": str(entry.lineage.get("base") or ""),
        "deprecated": entry.deprecated or "",
    }
    return {key: value for key, value in lines.items() if value}


def draw_summary(entry: Entry, metrics: Mapping[str, Any], console: Console) -> None:
    """Name, facts and scores beside the baselines."""
    from rich.markup import escape

    console.print(f"[bold]{entry.name}[/bold] {entry.version}", highlight=False)
    for key, value in facts(entry).items():
        console.print(f"  {key:<16} {escape(value)}", highlight=False)
    draw_scores(entry, metrics, console)


def draw_scores(entry: Entry, metrics: Mapping[str, Any], console: Console) -> None:
    """Scores of metrics.json beside its baselines; without the file, those of the index."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column(f"  {metrics.get('split', 'held-out')} split")
    for title in ("top-1", "top-5", "pairwise"):
        table.add_column(title, justify="right")
    for name, scores in results_of(entry, metrics).items():
        numbers = [score_text(scores.get(key)) for key in ("top1", "top5", "pairwise")]
        table.add_row(f"  {scores.get('label') or _BASELINES.get(name, name)}", *numbers)
    console.print(table)


def results_of(entry: Entry, metrics: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Scores by model, from metrics.json or else from the index."""
    from ..registry.describe import as_object

    results = as_object(metrics.get("results"))
    rows: dict[str, Mapping[str, Any]] = {name: row for name, row in results.items() if isinstance(row, dict)}
    return rows or {"model": entry.metrics}
