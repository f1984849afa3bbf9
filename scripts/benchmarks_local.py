"""What the page shows of the benchmark of this machine's targets, where adapting harmed and no pretraining is ahead."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from statistics import fmean
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
    """Sources that adapting left worse, and networks that a model without pretraining tunes to a lower latency."""
    yield from _left_worse(job["details"].get("rows", ()))
    rows = [row for row in job["details"].get("rows", ()) if row.get("tuned_ms")]
    scratch = {_key(row): row["tuned_ms"] for row in rows if row["source"] == SCRATCH}
    for row in rows:
        least = scratch.get(_key(row))
        if least is not None and least < row["tuned_ms"]:
            place = f"{row['network']} on {row['target']}, seed {row['seed']}"
            told = f"{row['tuned_ms']:.3g} ms against {least:.3g} ms"
            yield f"{place}: tuned slower from {row['source']} than without pretraining, {told}."


def _left_worse(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Sources whose adapted models, before the guard had its say, ranked held-out programs worse in the mean."""
    by_source: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if {"before", "after", "decision"} <= set(row):
            by_source.setdefault(row["source"], []).append(row)
    for source, own in by_source.items():
        before, after = (fmean(row[name] for row in own) for name in ("before", "after"))
        if after < before:
            kept = sum(row["decision"] == "kept" for row in own)
            told = f"{after:.3f} against {before:.3f}; the guard kept the source in {kept} of {len(own)} runs"
            yield f"Adapting on one machine, from {source}: pairwise accuracy on the hold-out fell in the mean, {told}."


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in _SAME)
