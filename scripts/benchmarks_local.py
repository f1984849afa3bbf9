"""What the page shows of the benchmark of this machine's targets, and where no pretraining is ahead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from local_runs import SCRATCH

_SECONDS = ("measuring_seconds", "learning_seconds", "tuning_seconds")
_SAME = ("network", "target", "seed")


def local(job: Mapping[str, Any]) -> dict[str, Any]:
    """A table for each network, then what the targets and sources are."""
    details = job["details"]
    rows = details["rows"]
    found: dict[str, Any] = {
        f"{network}: adapted, then tuned": [_told(row) for row in rows if row["network"] == network]
        for network in dict.fromkeys(row["network"] for row in rows)
    }
    for name in ("targets", "sources"):
        found[name.capitalize()] = [{"name": key, "what it is": words} for key, words in details[name].items()]
    return found


def _told(row: Mapping[str, Any]) -> dict[str, Any]:
    gain = row["after"] - row["before"]
    return {
        **{name: row[name] for name in ("target", "source", "seed", "programs", "failed")},
        **{name.replace("_", " "): round(row[name], 1) for name in _SECONDS},
        "pairwise, no label": row["zero_shot_before"],
        "before": row["before"],
        "after": row["after"],
        f"gain, {row['level']:.0%} interval": f"{gain:+.3f} ({row['gain_low']:+.3f} to {row['gain_high']:+.3f})",
        "decision": row["decision"],
        "tuned ms": row["tuned_ms"],
        "untuned ms": row["untuned_ms"],
    }


def lost_local(job: Mapping[str, Any]) -> Iterator[str]:
    """Networks that a model without pretraining tunes to a lower latency than a source's."""
    rows = [row for row in job["details"]["rows"] if row["tuned_ms"]]
    scratch = {_key(row): row["tuned_ms"] for row in rows if row["source"] == SCRATCH}
    for row in rows:
        least = scratch.get(_key(row))
        if least is not None and least < row["tuned_ms"]:
            place = f"{row['network']} on {row['target']}, seed {row['seed']}"
            told = f"{row['tuned_ms']:.3g} ms against {least:.3g} ms"
            yield f"{place}: tuned slower from {row['source']} than without pretraining, {told}."


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in _SAME)
