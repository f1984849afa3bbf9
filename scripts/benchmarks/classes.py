"""How each published checkpoint ranks programs by operator class, on tasks that it never saw.

    python -m scripts.zoo.build import --data DIR
    python -m scripts.benchmarks classes --json

Judged are the test tasks of every corpus of its kind of device, and those that no part of a split has, without the
computations that it learnt or that its trust was measured on (`scripts.zoo.classes`). `raw` is the pairwise accuracy of
the weights; `pairwise` that of the scores as they are used, where classes that are not trusted count one half.

`far` asks whether trust should end at the sizes that were learnt: the accuracy on tasks of more than `FAR` times as
many operations as any learnt one of their class, or `FAR` times fewer, less that on the tasks between, of the same
checkpoint, class and corpus; none of them is a test task.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from statistics import mean
from typing import Any

import torch
from tchub.zoo.models import CheckpointConfig

from scripts.benchmarks.common import Document, benchmark
from scripts.zoo.classes import EVIDENCE, JUDGE, LEARNT, task_accuracies
from scripts.zoo.measure_cards import published
from scripts.zoo.plan import open_corpus

CHANCE = 0.5
FAR = 4
MANY = 3  # tasks of a class in a corpus; the accuracy of one alone spreads by 0.15


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


def far_differences(rows: Iterable[Mapping[str, Any]], flops: Callable[[str, str], float]) -> dict[str, list[float]]:
    """Return for the `larger` and `smaller` tasks far outside the learnt sizes their accuracy less that of the others.

    Args:
        rows: of one checkpoint; flops: of a corpus's task, NaN where it is not known.
    """
    learnt, groups = defaultdict[str, list[float]](list), defaultdict[tuple[str, str], list[tuple[float, float]]](list)
    for row in rows:
        size = flops(row["corpus"], row["task"])
        if row["side"] == LEARNT and size > 0:
            learnt[row["operator"]].append(size)
        elif row["side"] == EVIDENCE and size > 0:
            groups[row["operator"], row["corpus"]].append((size, row["pairwise"]))
    differences: dict[str, list[float]] = {"larger": [], "smaller": []}
    for (operator, _), tasks in groups.items():
        if sizes := learnt[operator]:
            within = [accuracy for size, accuracy in tasks if min(sizes) <= size <= max(sizes)]
            for size, accuracy in tasks if within else ():
                if size > FAR * max(sizes):
                    differences["larger"].append(accuracy - mean(within))
                elif size * FAR < min(sizes):
                    differences["smaller"].append(accuracy - mean(within))
    return differences


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

    Both over all corpora, and corpus by corpus, where a class has few tasks; of `MANY` tasks also by itself.
    """
    summary: dict[str, Any] = {"checkpoints": len({row["checkpoint"] for row in rows})}
    for end, table in (("", by_class(rows)), ("_by_corpus", rows)):
        summary[f"classes{end}"] = len(table)
        for key, name in (("pairwise", ""), ("raw", "_raw")):
            summary[f"worst{end}{name}"] = min(row[key] for row in table)
            summary[f"below_half{end}{name}"] = sum(row[key] < CHANCE for row in table)
    many = [row for row in rows if row["tasks"] >= MANY]
    summary["below_half_of_many_tasks"] = sum(row["pairwise"] < CHANCE for row in many)
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
    rows: list[dict[str, Any]] = []
    far: dict[str, list[float]] = defaultdict(list)
    for one in published():
        tasks = task_accuracies(one)
        rows += judged(CheckpointConfig.read(one.folder), tasks)
        for side, differences in far_differences(
            tasks, lambda corpus, task: open_corpus(corpus).tasks[task].flops
        ).items():
            far[side] += differences
    summary = {f"far_{side}": {"tasks": len(own), "difference": mean(own)} for side, own in far.items()}
    details = {"worst": worst_classes(by_class(rows)), "classes": by_class(rows), "by_corpus": rows}
    return summarise(rows) | summary, details, [0]
