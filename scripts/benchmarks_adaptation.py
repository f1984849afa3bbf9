"""What the page shows of the benchmarks of adapting: samplers, and what other devices' programs are worth."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]

PROTOCOLS = {"cross-task": "Cross-task", "in-task": "In-task", "both": "Both"}
SCORES = {"pairwise": "pairwise accuracy", "mean_top1": "top-1"}
# Tables of the details that are shown as they are.
_PLAIN = {
    "label_ratios": "Labels that a method without sources needs over those that ours needs",
    "sources": "Number and order of the sources",
    "forgetting": "What the base still knows of earlier devices",
    "cost": "Size and cost by number of devices",
    "papers": "The papers' own networks",
    "ablation": "Parts of TCL, added one by one",
}


def sampling(job: Mapping[str, Any]) -> dict[str, Any]:
    """The tables that the benchmark's details hold, without the single results."""
    return {
        name.replace("_", " "): value
        for name, value in job["details"].items()
        if isinstance(value, list) and value and isinstance(value[0], dict) and name not in ("runs", "machine")
    }


def transfer(job: Mapping[str, Any]) -> dict[str, Any]:
    """Every protocol's tables, told apart by whether the tasks were seen, then sources, forgetting and cost."""
    details = job["details"]
    rows, titles = details["rows"], details["methods"]
    found: dict[str, Any] = {}
    for protocol, title in PROTOCOLS.items():
        for seen, words in ((False, "unseen"), (True, "seen")):
            own = [row for row in rows if row["protocol"] == protocol and row["seen"] is seen]
            for score, named in SCORES.items():
                heading = f"{title}, {words}: {named}"
                found[heading] = _by_target(own, score, titles)
                if any(row["labels"] for row in own):
                    found[f"{heading}, mean over targets"] = _by_labels(own, score, titles)
    found |= {title: details[name] for name, title in _PLAIN.items() if details.get(name)}
    return {title: table for title, table in found.items() if table}


def _by_target(rows: Sequence[Row], score: str, titles: Mapping[str, str]) -> list[dict[str, Any]]:
    """A row for each target and number of labels, a column for each method."""
    places = dict.fromkeys((row["target"], row["labels"]) for row in sorted(rows, key=lambda row: row["labels"]))
    targets = list(dict.fromkeys(row["target"] for row in rows))
    found = []
    for target, labels in sorted(places, key=lambda place: targets.index(place[0])):
        own = {r["method"]: figure(r[score]) for r in rows if (r["target"], r["labels"]) == (target, labels)}
        told = {"target": target, "labels a task": labels} if labels else {"target": target}
        found.append(told | {title: own[name] for name, title in titles.items() if name in own})
    return found


def _by_labels(rows: Sequence[Row], score: str, titles: Mapping[str, str]) -> list[dict[str, Any]]:
    """A row for each method, a column for each number of labels: the mean over the targets that all methods have."""
    methods = [name for name in titles if any(row["method"] == name for row in rows)]
    common = set.intersection(*({row["target"] for row in rows if row["method"] == name} for name in methods))
    found = []
    for name in methods:
        told: dict[str, Any] = {"method": titles[name], "targets": len(common)}
        for labels in sorted({row["labels"] for row in rows}):
            own = [r[score]["mean"] for r in _of(rows, name, labels) if r["target"] in common]
            if own:
                told[f"{labels} labels"] = statistics.mean(own)
        found.append(told)
    return found


def _of(rows: Iterable[Row], method: str, labels: int) -> list[Row]:
    return [row for row in rows if row["method"] == method and row["labels"] == labels]


def figure(spread: Mapping[str, float]) -> str:
    """Mean and deviation of seeds."""
    return f"{spread['mean']:.3f} ± {spread['stdev']:.3f}"
