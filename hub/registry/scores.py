"""Scores of a checkpoint beside its baselines, from metrics.json or else from the index."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from .describe import as_object
from .entry import Entry
from .fields import is_number, is_whole

TITLES = {
    "top1": "top-1",
    "top5": "top-5",
    "pairwise": "pairwise",
    "mean_top1": "mean top-1",
    "mean_top5": "mean top-5",
}
_LABELS = {
    "model": "this checkpoint",
    "random": "random choice",
    "xgboost": "XGBoost on PerStoreFeature",
    "ten_percent": "same, from 10% random data",
    "base": "before adapting",
}


def results_of(entry: Entry, metrics: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The checkpoint's own line, then its baselines': `key`, `label` and one number or None for each of `TITLES`."""
    results = as_object(metrics.get("results"))
    rows = {key: row for key, row in results.items() if isinstance(row, dict)} or {"model": entry.metrics}
    lines = [
        {"key": key, "label": str(row.get("label") or _LABELS.get(key, key))}
        | {score: _number(row.get(score)) for score in TITLES}
        for key, row in rows.items()
    ]
    return sorted(lines, key=lambda line: line["key"] != "model")


def own_scores(entry: Entry, metrics: Mapping[str, Any]) -> dict[str, float | None]:
    """The checkpoint's own numbers: those of the index, and what metrics.json holds besides."""
    first = results_of(entry, metrics)[0]
    told = first if first["key"] == "model" else {}
    return {score: _number(entry.metrics.get(score, told.get(score))) for score in TITLES}


def seeds_of(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return `count` and, by score, `mean` and `stdev` over trainings with several seeds; empty for a single training.

    The deviation belongs to this mean, not to the score of the checkpoint, which is the best one of the trainings.
    """
    seeds = as_object(metrics.get("seeds"))
    count = seeds.get("count")
    if not is_whole(count) or count < 2:
        return {}
    pairs = {
        score: {name: _number(as_object(seeds.get(score)).get(name)) for name in ("mean", "stdev")} for score in TITLES
    }
    found = {score: pair for score, pair in pairs.items() if None not in pair.values()}
    return {"count": count} | found if found else {}


def judged_on(metrics: Mapping[str, Any]) -> str:
    """What the scores are of, e.g. `epyc-turin, 90 tasks, 4,139 programs`; empty where it is not told.

    Scores compare where this is the same.
    """
    counts = [f"{metrics[key]:,} {key}" for key in ("tasks", "programs") if isinstance(metrics.get(key), int)]
    return ", ".join([str(metrics["corpus"]), *counts]) if metrics.get("corpus") else ""


def _number(value: object) -> float | None:
    return float(value) if is_number(value) and isfinite(value) else None
