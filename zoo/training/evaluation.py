"""How well a model ranks: its scores, the in-task protocol with a few labels, and the curves of a card.

In the in-task protocol labels are drawn at random from each task, and a model is judged on the programs that were not
drawn, so that a measured program never counts as a prediction.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import mean
from typing import Any

import numpy as np
import torch

from ..apportion import apportion
from ..corpus import Corpus, Task
from ..corpus.computation import in_words
from ..models.base import CostModel
from ..models.config import CheckpointConfig
from ..models.context import ContextModel, measured_scores
from ..models.trees import XGBoostRanker
from .dataset import RankingDataset
from .distributed import ALONE, World
from .metrics import evaluate_scores, mean_top_k, r_squared, task_scores, top_k
from .programs import task_kinds

TOP = (1, 2, 3, 5, 10, 20)
BINS = 10
POINTS = 300
WORST = 5
DIGITS = 4
_JUDGED = 64  # programs of a task that its pairwise accuracy is of


def predict(model: CostModel, features: np.ndarray, world: World = ALONE) -> np.ndarray:
    """Return scores (N,) of float64 for features (N, rows, width), the processes scoring a part each."""
    own = model.score(features[world.part(len(features))])
    if world.size == 1:
        return own
    return world.gather(torch.from_numpy(own).to(world.device), len(features)).cpu().numpy()


def evaluate_model(model: CostModel | XGBoostRanker, data: RankingDataset, world: World = ALONE) -> dict[str, float]:
    """Return `metrics.evaluate_scores` of the model's scores on a data set."""
    network = isinstance(model, CostModel)
    scores = predict(model, data.features, world) if network else model.score(data.features)
    return evaluate_scores(scores, data.latency, data.group, data.task_weights)


def head_scores(model: CostModel, data: RankingDataset) -> dict[str, float]:
    """Return how well a model of three heads predicts, as R² (Fasor, section 8.5.1); {} for any other model.

    Returns:
        latency: of the scores as estimates of -log(latency), the mean of each task taken off both; memory, core: of the
        memory-bound and core-bound scores, over all programs of which they are known. One without a value is left out.
    """
    bounds = model.bounds(data.features)
    if bounds is None:
        return {}
    scores = {"latency": r_squared(predict(model, data.features), -np.log(data.latency), data.group)}
    if data.bounds is not None:
        known = np.isfinite(data.bounds).all(axis=1)
        for column, name in enumerate(("memory", "core")):
            scores[name] = r_squared(bounds[known, column], data.bounds[known, column].astype(np.float64))
    return {name: score for name, score in scores.items() if np.isfinite(score)}


def trusted_tasks(config: CheckpointConfig, corpus: Corpus, data: RankingDataset) -> np.ndarray:
    """Return (T,) bool: tasks of a corpus of whose operator class a checkpoint's scores hold."""
    kinds = task_kinds(corpus)
    return np.array([config.trusts(*kinds[task]) for task in data.task_ids], dtype=bool)


def task_accuracies(
    model: CostModel,
    train: RankingDataset,
    val: RankingDataset | None,
    kinds: Mapping[str, tuple[str, str]],
    world: World = ALONE,
) -> Iterator[tuple[str, str, float, int]]:
    """Yield what `class_trust` counts: validation tasks judge, and some programs of each task that was learnt."""
    for data, learnt in ((val, False), (train, True)):
        if data is None:
            continue
        rng, counts = np.random.default_rng(0), [len(members) for members in data.members]
        some = data.take(np.concatenate([rng.permutation(members)[:_JUDGED] for members in data.members]))
        for task, row in task_scores(predict(model, some.features, world), some.latency, some.group).items():
            if "pairwise" in row:
                yield *kinds[some.task_ids[task]], row["pairwise"], counts[task] if learnt else 0


def draw_labels(data: RankingDataset, labels: int, seed: int = 0) -> np.ndarray:
    """Draw `labels` programs of each task at random, at most half of a task: (N,) bool."""
    rng = np.random.default_rng([seed, labels])
    known = np.zeros(len(data), dtype=bool)
    for members in data.members:
        known[rng.permutation(members)[: min(labels, len(members) // 2)]] = True
    return known


def scores_given(
    model: CostModel, data: RankingDataset, known: np.ndarray, trusted: np.ndarray | None = None
) -> np.ndarray:
    """Score the programs that are not `known` (N,), each task's known ones being the context: (N,), else NaN."""
    scores, rest = np.full(len(data), np.nan), np.flatnonzero(~known)
    given = data.features[rest], data.group[rest], data.take(np.flatnonzero(known))
    scores[rest] = informed_scores(model, *given, trusted=trusted)
    return scores


def informed_scores(
    model: CostModel,
    features: np.ndarray,
    group: np.ndarray,
    known: RankingDataset,
    known_features: np.ndarray | None = None,
    trusted: np.ndarray | None = None,
) -> np.ndarray:
    """Score programs as tuning does: given the measured ones of their task, where the model takes context.

    Args:
        features: (N, rows, width) of the programs to be ranked; group: (N,) task of each, counted as in `known`.
        known: measured programs, none of them among those to be ranked.
        known_features: of the measured ones, where this model reads others than `known` has.
        trusted: (T,) bool, tasks that the model may rank; the others' known programs rank alone. None: all.
    """
    context = known.features if known_features is None else known_features
    scores = np.empty(len(features)) if isinstance(model, ContextModel) else np.array(model.score(features))
    for task in np.unique(group):
        own, have = np.flatnonzero(group == task), known.members[task]
        given = features[own], context[have], known.latency[have]
        if trusted is not None and not trusted[task]:
            scores[own] = measured_scores(*given)
        elif isinstance(model, ContextModel):
            scores[own] = model.score_given(*given)
    return scores


def evaluate_unknown(data: RankingDataset, known: np.ndarray, scores: np.ndarray) -> dict[str, float]:
    """Return `evaluate_scores` on the programs that are not `known` (N,), by scores (N,)."""
    rest = np.flatnonzero(~known)
    return evaluate_scores(scores[rest], data.latency[rest], data.group[rest], data.task_weights)


@dataclass(frozen=True)
class RankedPrograms:
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
        """Return (N,) in (0, 1): rank of a program's score within its task, near 1 for the one ranked first."""
        return self._ranks(self.scores)

    @cached_property
    def measured(self) -> np.ndarray:
        """Return (N,) in (0, 1): rank of a program by its latency within its task, near 1 for the fastest."""
        return self._ranks(-self.data.latency)

    def _ranks(self, values: np.ndarray) -> np.ndarray:
        from scipy.stats import rankdata

        ranks = np.empty(len(values))
        for members in self.data.members:
            ranks[members] = (rankdata(values[members]) - 0.5) / max(1, len(members))
        return ranks


def measure_curves(parts: Sequence[RankedPrograms]) -> dict[str, Any]:
    """Return what metrics.json holds under `curves`.

    Args:
        parts: the test split; of a knowledge base those of all its corpora.

    Returns:
        top_k: for each k of `TOP` the score of the model and of random choice, and both as the mean over tasks; of
            several corpora the mean of each one's.
        scatter: `POINTS` programs, from every task alike: predicted rank within the task and measured label.
        calibration: programs by tenths of their predicted rank: mean and standard deviation of the label, and the
            mean of the same tenth by measured rank, which is what a perfect ranking has.
        failures: the `WORST` tasks by pairwise accuracy, and the mean over the tasks of each operator.
    """
    rows = [row for part in parts for row in task_rows(part)]
    worst = sorted((row for row in rows if "pairwise" in row), key=lambda row: (row["pairwise"], row["task"]))
    return {
        "programs": sum(len(part.data) for part in parts),
        "tasks": len(rows),
        "top_k": [_top_row(parts, k) for k in TOP],
        "scatter": _scatter(parts),
        "calibration": _calibration(parts),
        "failures": {"tasks": worst[:WORST], "operators": _by_operator(rows)},
    }


def _top_row(parts: Sequence[RankedPrograms], k: int) -> dict[str, float]:
    values: dict[str, list[float]] = {name: [] for name in ("model", "random", "mean_model", "mean_random")}
    for part in parts:
        data = part.data
        for name, scores in (("model", part.scores), ("random", np.zeros_like(part.scores))):
            values[name].append(top_k(scores, data.latency, data.group, data.task_weights, k))
            values[f"mean_{name}"].append(mean_top_k(scores, data.latency, data.group, k))
    return {"k": k} | {name: round(mean(scores), DIGITS) for name, scores in values.items()}


def _scatter(parts: Sequence[RankedPrograms]) -> dict[str, Any]:
    seed = 0
    rng = np.random.default_rng(seed)
    tasks = [(part, members) for part in parts for members in part.data.members if len(members)]
    sizes = {number: len(members) for number, (_, members) in enumerate(tasks)}
    shares = apportion(POINTS, dict.fromkeys(sizes, 1.0), sizes)
    predicted: list[float] = []
    measured: list[float] = []
    for (part, members), share in zip(tasks, shares.values(), strict=True):
        chosen = np.sort(rng.permutation(members)[:share])
        predicted += part.predicted[chosen].round(DIGITS).tolist()
        measured += part.data.labels[chosen].round(DIGITS).tolist()
    return {"seed": seed, "predicted": predicted, "measured": measured}


def _calibration(parts: Sequence[RankedPrograms]) -> list[dict[str, float]]:
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


def _tenths(ranks: np.ndarray) -> np.ndarray:
    return np.minimum((ranks * BINS).astype(int), BINS - 1)


def operator_scores(part: RankedPrograms) -> list[dict[str, Any]]:
    """Return tasks, programs, and mean top1 and pairwise of each operator class, those of many tasks first."""
    return _by_operator(task_rows(part))


def task_rows(part: RankedPrograms) -> list[dict[str, Any]]:
    """Return the scores of each task of a part."""
    counts = np.bincount(part.data.group, minlength=len(part.data.task_ids))
    rows = []
    for number, scores in task_scores(part.scores, part.data.latency, part.data.group).items():
        task = part.tasks[part.data.task_ids[number]]
        facts = {"corpus": part.corpus, "task": task.task_id, "operator": task.op, "programs": int(counts[number])}
        facts["words"] = in_words(part.computations[task.task_id]) or task.name
        rows.append(facts | {name: round(value, DIGITS) for name, value in scores.items()})
    return rows


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
