"""What the page shows of the benchmark of this machine's targets, where adapting harmed and no pretraining is ahead."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from statistics import fmean
from typing import Any

from scripts.benchmarks.local.runs import SCRATCH

_SECONDS = ("measuring_seconds", "learning_seconds", "tuning_seconds")
_FACTS = ("target", "source", "seed", "programs", "failed")
_ACCURACY = {"zero_shot_before": "pairwise, no label", "before": "before", "after": "after"}
_OUTCOME = {"method": "method", "decision": "decision", "tuned_ms": "tuned ms", "untuned_ms": "untuned ms"}
_SAME = ("network", "target", "seed")
# Means over seeds, of scores on further programs.
_FURTHER = {
    "further_start_pairwise": "source, no label",
    "further_start_given_pairwise": "source, labels as context",
    "further_decided_given_pairwise": "decided on, labels as context",
    "further_start_given_mean_top1": "source, top-1",
    "further_decided_given_mean_top1": "decided on, top-1",
}
_JUDGED = ("further_start_given_pairwise", "further_decided_given_pairwise")


def local(job: Mapping[str, Any]) -> dict[str, Any]:
    """Two tables for each network, then what the targets and sources are."""
    details = job["details"]
    rows = details.get("rows", ())
    found: dict[str, Any] = {}
    for network in dict.fromkeys(row["network"] for row in rows):
        own = [row for row in rows if row["network"] == network]
        found[f"{network}: adapted, then tuned"] = [_told(row) for row in own]
        found[f"{network}: on further programs"] = list(_further(own))
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


def _further(rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """A line for each target and source, and the mean over targets; pairwise accuracy where nothing else is said."""
    judged = [row for row in rows if set(_FURTHER) <= set(row)]
    targets = dict.fromkeys(row["target"] for row in judged)
    for source in dict.fromkeys(row["source"] for row in judged):
        own = [row for row in judged if row["source"] == source]
        for target, those in [(t, [row for row in own if row["target"] == t]) for t in targets] + [("mean", own)]:
            if those:
                told = {words: round(fmean(row[name] for row in those), 3) for name, words in _FURTHER.items()}
                runs = {"runs": len(those), "adapted": sum(row["decision"] == "adapted" for row in those)}
                yield {"source": source, "target": target} | runs | told


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
    """Sources of which the guard stored models that rank further programs worse in the mean, and how many do."""
    by_source: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if {*_JUDGED, "decision"} <= set(row) and row["decision"] == "adapted":
            by_source.setdefault(row["source"], []).append((row[_JUDGED[0]], row[_JUDGED[1]]))
    for source, pairs in by_source.items():
        before, after = map(fmean, zip(*pairs, strict=True))
        if after < before:
            worse = sum(late < early for early, late in pairs)
            told = f"{after:.3f} against {before:.3f}; {worse} of {len(pairs)} adapted models are worse"
            yield f"Adapting on one machine, from {source}: pairwise accuracy on further programs fell, {told}."


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in _SAME)
