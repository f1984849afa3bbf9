"""How a checkpoint ranks a test split, told in more than single scores: what a card's plots and tables are made of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import mean
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import rankdata

from ..apportion import apportion_capped
from ..corpus.computation import in_words
from .dataset import RankingDataset
from .metrics import mean_top_k, task_scores, top_k

if TYPE_CHECKING:
    from ..corpus import Task

TOP = (1, 2, 3, 5, 10, 20)
BINS = 10
POINTS = 300
WORST = 5
DIGITS = 4


@dataclass(frozen=True)
class Ranked:
    """Programs of a corpus, in the order that a model gives them.

    Attributes:
        corpus: its name; tasks: id -> task, at least those of `data`.
        data: the programs; scores: (N,), higher is better.
        computations: task id -> what it computes, see `corpus.computation`.
    """

    corpus: str
    tasks: Mapping[str, Task]
    data: RankingDataset
    scores: np.ndarray
    computations: Mapping[str, str]

    @cached_property
    def predicted(self) -> np.ndarray:
        """(N,) in (0, 1): place of a program's score among those of its task, near 1 for the one ranked first."""
        return self._places(self.scores)

    @cached_property
    def measured(self) -> np.ndarray:
        """(N,) in (0, 1): place of a program by its latency, near 1 for the fastest."""
        return self._places(-self.data.latency)

    def _places(self, values: np.ndarray) -> np.ndarray:
        places = np.empty(len(values))
        for members in self.data.members:
            places[members] = (rankdata(values[members]) - 0.5) / max(1, len(members))
        return places


def measure_curves(parts: Sequence[Ranked], seed: int = 0) -> dict[str, Any]:
    """What metrics.json holds under `curves`.

    Args:
        parts: the test split; of a knowledge base those of all its corpora.
        seed: draws the points of `scatter`.

    Returns:
        programs, tasks: that were ranked.
        top_k: for each k of `TOP` the score (see `metrics.top_k`) of the model and of random choice, and both as the
            mean over tasks; of several corpora the mean of each one's.
        scatter: `POINTS` programs, from every task alike: predicted place within the task and measured label
            (lowest latency of the task / latency).
        calibration: programs by tenths of their predicted place: mean and standard deviation of the label, and the
            mean of the same tenth by measured place, which is what a perfect ranking has.
        failures: the `WORST` tasks by pairwise accuracy, and the mean over the tasks of each operator.
    """
    rows = [row for part in parts for row in _task_rows(part)]
    return {
        "programs": sum(len(part.data) for part in parts),
        "tasks": len(rows),
        "top_k": [_top_row(parts, k) for k in TOP],
        "scatter": _scatter(parts, seed),
        "calibration": _calibration(parts),
        "failures": {"tasks": _worst(rows), "operators": _by_operator(rows)},
    }


def _top_row(parts: Sequence[Ranked], k: int) -> dict[str, float]:
    def over_parts(score: Callable[[Ranked, np.ndarray], float], chance: bool) -> float:
        values = [score(part, np.zeros_like(part.scores) if chance else part.scores) for part in parts]
        return round(mean(values), DIGITS)

    def weighted(part: Ranked, scores: np.ndarray) -> float:
        return top_k(scores, part.data.latency, part.data.group, part.data.task_weights, k)

    def alike(part: Ranked, scores: np.ndarray) -> float:
        return mean_top_k(scores, part.data.latency, part.data.group, k)

    return {
        "k": k,
        "model": over_parts(weighted, chance=False),
        "random": over_parts(weighted, chance=True),
        "mean_model": over_parts(alike, chance=False),
        "mean_random": over_parts(alike, chance=True),
    }


def _scatter(parts: Sequence[Ranked], seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    tasks = [(part, members) for part in parts for members in part.data.members if len(members)]
    sizes = {number: len(members) for number, (_, members) in enumerate(tasks)}
    shares = apportion_capped(POINTS, dict.fromkeys(sizes, 1.0), sizes)
    predicted: list[float] = []
    measured: list[float] = []
    for (part, members), share in zip(tasks, shares.values(), strict=True):
        chosen = np.sort(rng.permutation(members)[:share])
        predicted += part.predicted[chosen].round(DIGITS).tolist()
        measured += part.data.labels[chosen].round(DIGITS).tolist()
    return {"seed": seed, "predicted": predicted, "measured": measured}


def _calibration(parts: Sequence[Ranked]) -> list[dict[str, float]]:
    labels = np.concatenate([part.data.labels for part in parts])
    tenths = _tenths(np.concatenate([part.predicted for part in parts]))
    ideal = _tenths(np.concatenate([part.measured for part in parts]))
    return [
        {
            "least": tenth / BINS,
            "most": (tenth + 1) / BINS,
            "programs": int((tenths == tenth).sum()),
            "mean": round(float(labels[tenths == tenth].mean()), DIGITS),
            "stdev": round(float(labels[tenths == tenth].std()), DIGITS),
            "perfect": round(float(labels[ideal == tenth].mean()), DIGITS),
        }
        for tenth in range(BINS)
        if (tenths == tenth).any() and (ideal == tenth).any()
    ]


def _tenths(places: np.ndarray) -> np.ndarray:
    return np.minimum((places * BINS).astype(int), BINS - 1)


def _task_rows(part: Ranked) -> list[dict[str, Any]]:
    """What each task of a part came to."""
    counts = np.bincount(part.data.group, minlength=len(part.data.task_ids))
    scores = task_scores(part.scores, part.data.latency, part.data.group)
    rows = []
    for number, found in scores.items():
        task = part.tasks[part.data.task_ids[number]]
        facts = {"corpus": part.corpus, "task": task.task_id, "operator": task.op, "programs": int(counts[number])}
        words = in_words(part.computations[task.task_id]) or task.name
        rows.append(facts | {"words": words} | {name: round(value, DIGITS) for name, value in found.items()})
    return rows


def _worst(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    ordered = [row for row in rows if "pairwise" in row]
    return sorted(ordered, key=lambda row: (row["pairwise"], row["task"]))[:WORST]


def _by_operator(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["operator"]].append(row)
    return [
        {"operator": name, "tasks": len(group), "programs": sum(row["programs"] for row in group)}
        | {
            score: round(mean(values), DIGITS)
            for score in ("top1", "pairwise")
            if (values := [row[score] for row in group if score in row])
        }
        for name, group in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    ]
