"""What the page shows of the benchmark of this machine's targets, and where no pretraining is ahead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from local_runs import SCRATCH

_SECONDS = ("measuring_seconds", "learning_seconds", "tuning_seconds")
_FACTS = ("target", "source", "seed", "programs", "failed")
_ACCURACY = {"zero_shot_before": "pairwise, no label", "before": "before", "after": "after"}
_OUTCOME = {"decision": "decision", "tuned_ms": "tuned ms", "untuned_ms": "untuned ms"}
_SAME = ("network", "target", "seed")


def local(job: Mapping[str, Any]) -> dict[str, Any]:
    """A table for each network, then what the targets and sources are."""
    details = job["details"]
    rows = details.get("rows", ())
    found: dict[str, Any] = {
        f"{network}: adapted, then tuned": [_told(row) for row in rows if row["network"] == network]
        for network in dict.fromkeys(row["network"] for row in rows)
    }
    for name in ("targets", "sources"):
        found[name.capitalize()] = [{"name": key, "what it is": words} for key, words in details.get(name, {}).items()]
    return {title: table for title, table in found.items() if table}


def _told(row: Mapping[str, Any]) -> dict[str, Any]:
    """A run's cells; of what a run does not have there is none."""
    told: dict[str, Any] = {name: row[name] for name in _FACTS if name in row}
    told |= {name.replace("_", " "): round(row[name], 1) for name in _SECONDS if row.get(name) is not None}
    told |= {words: row[name] for name, words in _ACCURACY.items() if name in row}
    if {"before", "after", "level", "gain_low", "gain_high"} <= set(row):
        between = f"{row['gain_low']:+.3f} to {row['gain_high']:+.3f}"
        told[f"gain, {row['level']:.0%} interval"] = f"{row['after'] - row['before']:+.3f} ({between})"
    return told | {words: row[name] for name, words in _OUTCOME.items() if name in row}


def lost_local(job: Mapping[str, Any]) -> Iterator[str]:
    """Networks that a model without pretraining tunes to a lower latency than a source's."""
    rows = [row for row in job["details"].get("rows", ()) if row.get("tuned_ms")]
    scratch = {_key(row): row["tuned_ms"] for row in rows if row["source"] == SCRATCH}
    for row in rows:
        least = scratch.get(_key(row))
        if least is not None and least < row["tuned_ms"]:
            place = f"{row['network']} on {row['target']}, seed {row['seed']}"
            told = f"{row['tuned_ms']:.3g} ms against {least:.3g} ms"
            yield f"{place}: tuned slower from {row['source']} than without pretraining, {told}."


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in _SAME)
