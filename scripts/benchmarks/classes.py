"""How each published checkpoint ranks programs by operator class, on tasks that it never saw.

    python -m scripts.zoo.build import --data DIR
    python -m scripts.benchmarks classes --json

Judged are the test tasks of every corpus of its kind of device, and those that no part of a split has, without the
computations that it learnt or that its trust was measured on (`scripts.zoo.classes`). `raw` is the pairwise accuracy of
the weights; `pairwise` that of the scores as they are used, where classes that are not trusted count one half.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import mean
from typing import Any

import torch
from tchub.zoo.models import CheckpointConfig

from scripts.benchmarks.common import Document, benchmark
from scripts.zoo.classes import JUDGE, task_accuracies
from scripts.zoo.measure_cards import published

CHANCE = 0.5


def judged(config: CheckpointConfig, rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the accuracy by corpus and operator class of the tasks that judge."""
    groups: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for row in rows:
        if row["side"] == JUDGE:
            groups[row["operator"], row["corpus"], row["framework"]].append(row["pairwise"])
    return [
        {
            "checkpoint": config.name,
            "operator": operator,
            "corpus": corpus,
            "tasks": len(accuracies),
            "raw": mean(accuracies),
            "pairwise": mean(accuracies) if config.trusts(framework, operator) else CHANCE,
        }
        for (operator, corpus, framework), accuracies in sorted(groups.items())
    ]


def by_class(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the accuracy of each checkpoint on each operator class: the mean over the tasks of all corpora."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["checkpoint"], row["operator"]].append(row)
    table = []
    for (checkpoint, operator), own in groups.items():
        tasks = sum(row["tasks"] for row in own)
        means = {key: sum(row[key] * row["tasks"] for row in own) / tasks for key in ("raw", "pairwise")}
        table.append({"checkpoint": checkpoint, "operator": operator, "tasks": tasks} | means)
    return table


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the worst class of any checkpoint, and how many are below chance, as used and by the weights alone.

    Both over all corpora, and corpus by corpus, where a class has few tasks.
    """
    summary: dict[str, Any] = {"checkpoints": len({row["checkpoint"] for row in rows})}
    for end, table in (("", by_class(rows)), ("_by_corpus", rows)):
        summary[f"classes{end}"] = len(table)
        for key, name in (("pairwise", ""), ("raw", "_raw")):
            summary[f"worst{end}{name}"] = min(row[key] for row in table)
            summary[f"below_half{end}{name}"] = sum(row[key] < CHANCE for row in table)
    tasks = sum(row["tasks"] for row in rows)
    for key, name in (("pairwise", "mean"), ("raw", "mean_raw")):
        summary[name] = sum(row[key] * row["tasks"] for row in rows) / tasks
    return summary


def worst_classes(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the worst class of each checkpoint, by the weights and as its scores are used."""
    table = []
    for name in sorted({row["checkpoint"] for row in rows}):
        own = [row for row in rows if row["checkpoint"] == name]
        raw, used = min(own, key=lambda row: row["raw"]), min(own, key=lambda row: row["pairwise"])
        line = {"checkpoint": name, "worst_raw": raw["raw"], "of": raw["operator"], "worst": used["pairwise"]}
        table.append(line | {f"below_half{end}": sum(row[key] < CHANCE for row in own) for key, end in _SCORES})
    return table


_SCORES = (("raw", "_raw"), ("pairwise", ""))


@benchmark("classes")
def main() -> Document:
    """Judge what is in the wheel by operator class."""
    torch.set_num_threads(1)
    rows = [row for one in published() for row in judged(CheckpointConfig.read(one.folder), task_accuracies(one))]
    return summarise(rows), {"worst": worst_classes(by_class(rows)), "classes": by_class(rows), "by_corpus": rows}, [0]
