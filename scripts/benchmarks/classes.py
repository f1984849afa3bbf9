"""How each published checkpoint ranks programs by operator class, on tasks that it never saw.

    python -m scripts.zoo.build import --data DIR
    python -m scripts.benchmarks classes --json

Judged are the test tasks of every corpus of its kind of device, and those that no part of a split has, without the
computations that it learnt or that its trust was measured on (`scripts.zoo.classes`). `raw` is the pairwise accuracy of
the weights; `pairwise` that of the scores as they are used, where classes that are not trusted count one half. `error`
is the standard error of both, by the jackknife over the programs of each task; `below_half_significantly` counts what
these programs tell from chance, with 95% confidence.

Of the trusted classes of a corpus that have `evidence` there, tasks that are neither learnt nor test tasks,
`below_half_with_evidence` are below half; `below_half_expected` would be if as many tasks were drawn from the evidence.

`far` asks whether trust should end at the sizes that were learnt: the accuracy on tasks of more than `FAR` times as
many operations as any learnt one of their class, or `FAR` times fewer, less that on the tasks between, of the same
checkpoint, class and corpus; none of them is a test task.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from math import hypot
from statistics import mean
from typing import Any

import numpy as np
import torch
from tchub.zoo.models import CheckpointConfig

from scripts.benchmarks.common import Document, benchmark
from scripts.zoo.classes import EVIDENCE, JUDGE, LEARNT, task_accuracies
from scripts.zoo.measure_cards import published
from scripts.zoo.plan import open_corpus

CHANCE = 0.5
FAR = 4
WIDTH = 1.96  # of half a confidence interval of 95%, in standard errors
CLASS = ("checkpoint", "operator")
SCORES = {"pairwise": "", "raw": "_raw"}
# Checkpoint, operator class and corpus -> accuracies of its tasks that neither were learnt nor are test tasks.
Evidence = Mapping[tuple[str, str, str], list[float]]


def judged(config: CheckpointConfig, rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the tasks that judge; `raw` is the accuracy of the weights, `pairwise` that of the scores as used."""
    tasks = [{**row, "checkpoint": config.name, "raw": row["pairwise"]} for row in rows if row["side"] == JUDGE]
    for task in tasks:
        task["trusted"] = config.trusts(task["framework"], task["operator"])
        task["pairwise"] = task["raw"] if task["trusted"] else CHANCE
    return tasks


def expected_below_half(tasks: Iterable[Mapping[str, Any]], evidence: Evidence, draws: int = 1000) -> dict[str, float]:
    """Return how many trusted classes of a corpus are below half, and how many of tasks drawn from their evidence."""
    rng, groups = np.random.default_rng(0), defaultdict[tuple[str, str, str], list[float]](list)
    for task in tasks:
        if task["trusted"]:
            groups[task["checkpoint"], task["operator"], task["corpus"]].append(task["pairwise"])
    counted = [(mean(own) < CHANCE, len(own), evidence[key]) for key, own in groups.items() if key in evidence]
    drawn = [float((rng.choice(like, (draws, n)).mean(axis=1) < CHANCE).mean()) for _, n, like in counted]
    below = sum(is_below for is_below, *_ in counted)
    return {"below_half_with_evidence": below, "below_half_expected": round(sum(drawn), 1)}


def mean_rows(tasks: Iterable[Mapping[str, Any]], *keys: str) -> list[dict[str, Any]]:
    """Return the mean accuracies of the tasks that are alike in these keys."""
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for task in tasks:
        groups[tuple(task[key] for key in keys)].append(task)
    return [
        dict(zip(keys, names, strict=True))
        | {"tasks": len(own), "error": hypot(*(task["error"] for task in own)) / len(own)}
        | {score: mean(task[score] for task in own) for score in ("raw", "pairwise")}
        for names, own in sorted(groups.items())
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


def summarise(tasks: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the worst class and how many are below chance, over all corpora and by corpus, as used and by weights."""
    summary: dict[str, Any] = {"checkpoints": len({task["checkpoint"] for task in tasks})}
    for end, keys in (("", CLASS), ("_by_corpus", (*CLASS, "corpus"))):
        table = mean_rows(tasks, *keys)
        summary[f"classes{end}"] = len(table)
        for key, name in SCORES.items():
            summary[f"worst{end}{name}"] = min(row[key] for row in table)
            summary[f"below_half{end}{name}"] = sum(row[key] < CHANCE for row in table)
            significant = sum(row[key] + WIDTH * row["error"] < CHANCE for row in table)
            summary[f"below_half_significantly{end}{name}"] = significant
    return summary | {f"mean{name}": mean(task[key] for task in tasks) for key, name in SCORES.items()}


def worst_classes(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the worst class of each checkpoint, by the weights and as its scores are used."""
    table = []
    for name in sorted({row["checkpoint"] for row in rows}):
        own = [row for row in rows if row["checkpoint"] == name]
        raw, used = min(own, key=lambda row: row["raw"]), min(own, key=lambda row: row["pairwise"])
        line = {"checkpoint": name, "worst_raw": raw["raw"], "of": raw["operator"], "worst": used["pairwise"]}
        table.append(line | {f"below_half{end}": sum(row[key] < CHANCE for row in own) for key, end in SCORES.items()})
    return table


@benchmark("classes")
def main() -> Document:
    """Judge what is in the wheel by operator class."""
    torch.set_num_threads(1)
    tasks: list[dict[str, Any]] = []
    far: dict[str, list[float]] = defaultdict(list)
    evidence = defaultdict[tuple[str, str, str], list[float]](list)
    for one in published():
        rows = task_accuracies(one)
        tasks += judged(CheckpointConfig.read(one.folder), rows)
        for row in rows:
            if row["side"] == EVIDENCE:
                evidence[one.name, row["operator"], row["corpus"]].append(row["pairwise"])
        differences = far_differences(rows, lambda corpus, task: open_corpus(corpus).tasks[task].flops)
        for side, own in differences.items():
            far[side] += own
    summary = {f"far_{side}": {"tasks": len(own), "difference": mean(own)} for side, own in far.items()}
    classes, by_corpus = mean_rows(tasks, *CLASS), mean_rows(tasks, *CLASS, "corpus")
    below = [row for row in by_corpus if row["pairwise"] < CHANCE]
    for row in below:
        like = evidence.get((row["checkpoint"], row["operator"], row["corpus"]), [])
        row |= {"evidence_tasks": len(like), "evidence": mean(like) if like else None}
    details = {"worst": worst_classes(classes), "below_half": below, "classes": classes, "by_corpus": by_corpus}
    return summarise(tasks) | expected_below_half(tasks, dict(evidence)) | summary, details, [0]
