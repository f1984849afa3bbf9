"""Figures of the transfer benchmark, from its single results: means over seeds, differences, labels needed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
Curve = Sequence[tuple[float, float]]

SCORES = ("pairwise", "mean_top1", "mean_top5", "top1", "top5")
# What is counted for each of two methods at one protocol, targets in common.
DIFFERENCES = (
    ("continual_minus_finetune", "continual", "fine-tune"),
    ("continual_minus_mtl", "continual", "multi-task"),
    ("ours_minus_continual", "ours", "continual"),
    ("ours_minus_finetune", "ours", "fine-tune"),
    ("finetune_minus_scratch", "fine-tune", "scratch"),
)
RIVALS = {"scratch": "scratch", "trees": "trees"}


def mean_rows(answers: Iterable[Row]) -> list[dict[str, Any]]:
    """One row for each target, sources, protocol, labels and method: mean and deviation over seeds."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for answer in answers:
        key = tuple(answer[name] for name in ("target", "seen", "protocol", "labels", "method"))
        groups.setdefault((*key, tuple(answer["sources"]), tuple(answer["taught"])), []).append(answer)
    return [_mean_row(found) for found in groups.values()]


def _mean_row(found: Sequence[Row]) -> dict[str, Any]:
    first = found[0]
    return {
        **{name: first[name] for name in ("target", "seen", "protocol", "labels", "method")},
        "sources": list(first["sources"]),
        "taught": list(first["taught"]),
        "seeds": sorted(answer["seed"] for answer in found),
        **{name: spread([answer["scores"][name] for answer in found]) for name in SCORES},
        **{name: statistics.mean(a[name] for a in found) for name in ("seconds", "pretraining_seconds", "parameters")},
        "tasks": first["tasks"],
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Mean and standard deviation."""
    return {"mean": statistics.mean(values), "stdev": statistics.stdev(values) if len(values) > 1 else 0.0}


def find(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    """The rows that have these values."""
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def difference(rows: Sequence[Row], one: str, other: str, score: str) -> float | None:
    """Mean over targets of one method's score less another's, cross-task; None where no target has both."""
    gaps = [a - b for a, b in _pairs(rows, one, other, score)]
    return statistics.mean(gaps) if gaps else None


def share(rows: Sequence[Row], one: str, other: str, score: str) -> float | None:
    """Mean over targets of one method's score divided by another's, cross-task."""
    ratios = [a / b for a, b in _pairs(rows, one, other, score)]
    return statistics.mean(ratios) if ratios else None


def _pairs(rows: Sequence[Row], one: str, other: str, score: str) -> Iterator[tuple[float, float]]:
    cross = find(rows, protocol="cross-task", seen=False)
    second = {row["target"]: row[score]["mean"] for row in find(cross, method=other)}
    for row in find(cross, method=one):
        if row["target"] in second:
            yield row[score]["mean"], second[row["target"]]


def curve(
    rows: Sequence[Row], target: str, seen: bool, method: str, score: str = "pairwise"
) -> list[tuple[int, float]]:
    """(labels a task, mean score) in-task, from the least labels; without any, what needs none."""
    own = find(rows, target=target, seen=seen)
    start = [row[score]["mean"] for row in find(own, method="zero-shot", protocol="cross-task")]
    nothing = 0.5 if method in RIVALS else start[0] if start else None
    found = [(row["labels"], row[score]["mean"]) for row in find(own, method=method, protocol="in-task")]
    return sorted([*([(0, nothing)] if nothing is not None else []), *found])


def labels_needed(points: Curve, level: float) -> float | None:
    """Labels at which a curve first has a level, straight lines between its points; None where it never has."""
    for i, (labels, value) in enumerate(points):
        if value >= level:
            if i == 0:
                return float(labels)
            before, lower = points[i - 1]
            return before + (labels - before) * (level - lower) / (value - lower)
    return None


def label_ratio(scratch: Curve, ours: Curve) -> float | None:
    """Labels that scratch needs over those that ours needs, for scratch's score at its most labels.

    A need of less than one label counts as one. Where ours does not reach that score, the ratio is for ours'
    own best score, which scratch has with fewer labels: it is below 1.
    """
    if not scratch or not ours or scratch[-1][0] != ours[-1][0]:
        return None
    most = scratch[-1][0]
    need = labels_needed(ours, scratch[-1][1])
    if need is not None:
        return most / max(1.0, need)
    return max(1.0, labels_needed(scratch, ours[-1][1]) or most) / most


def ratio_rows(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The label ratio of each target, against each method without sources."""
    found = []
    for seen in (False, True):
        for target in dict.fromkeys(row["target"] for row in rows):
            ours = curve(rows, target, seen, "ours")
            ratios = {f"versus {rival}": label_ratio(curve(rows, target, seen, rival), ours) for rival in RIVALS}
            if len(ours) > 1 and any(value is not None for value in ratios.values()):
                found.append({"target": target, "seen": seen, **ratios})
    return found


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """Of those that are known; None without any."""
    known = [value for value in values if value is not None]
    return math.exp(statistics.mean(map(math.log, known))) if known else None


def summary(rows: Sequence[Row], forgetting: Mapping[str, float | None]) -> dict[str, Any]:
    """The figures that are quoted; one that was not measured is left out."""
    found: dict[str, Any] = {}
    for name, one, other in DIFFERENCES:
        found[name] = difference(rows, one, other, "mean_top1")
        found[f"{name}_pairwise"] = difference(rows, one, other, "pairwise")
    found["continual_over_full"] = share(rows, "continual", "full", "mean_top1")
    found["continual_over_full_pairwise"] = share(rows, "continual", "full", "pairwise")
    found["forgetting"], found["forgetting_pairwise"] = forgetting.get("mean_top1"), forgetting.get("pairwise")
    ratios = ratio_rows(rows)
    for rival in RIVALS:
        for seen, end in ((False, ""), (True, "_seen")):
            own = [row[f"versus {rival}"] for row in ratios if row["seen"] is seen]
            found[f"label_ratio_vs_{rival}{end}"] = geometric_mean(own)
            found[f"label_ratio_vs_{rival}{end}_least"] = min((v for v in own if v is not None), default=None)
    return {name: value for name, value in found.items() if value is not None}


def source_rows(rows: Sequence[Row], ordered: Sequence[Row]) -> list[dict[str, Any]]:
    """Continual learning cross-task by the sources that teach, in order, those of the main table among them."""
    targets = {row["target"] for row in ordered}
    whole = [row for row in find(rows, protocol="cross-task", seen=False) if row["target"] in targets]
    titles = {
        "continual": "all, as given",
        "continual-chosen": "chosen by agreement, rehearsal",
        "fine-tune": "all at once, fine-tuned",
    }
    found = [(row, " > ".join(row["taught"])) for row in ordered]
    found += [(row, titles[row["method"]]) for row in whole if row["method"] in titles]
    return [
        {"target": row["target"], "sources": words, "seeds": len(row["seeds"])}
        | {name: row[name]["mean"] for name in ("pairwise", "mean_top1", "mean_top5")}
        for row, words in sorted(found, key=lambda pair: pair[0]["target"])
    ]
