"""Ranking a task of which a few programs are measured: the in-task protocol.

Labels are drawn at random from each task; a model is judged on the programs that were not drawn, so that a
measured program never counts as a prediction.
"""

from __future__ import annotations

import numpy as np

from ..models.base import CostModel
from ..models.context import ContextModel
from .dataset import RankingDataset
from .errors import NoContextError
from .metrics import evaluate_scores


def draw_labels(data: RankingDataset, labels: int, seed: int = 0) -> np.ndarray:
    """(N,) bool: `labels` programs of each task at random, at most half of a task."""
    rng = np.random.default_rng([seed, labels])
    known = np.zeros(len(data), dtype=bool)
    for members in data.members:
        known[rng.permutation(members)[: min(labels, len(members) // 2)]] = True
    return known


def few_shot_scores(model: CostModel, data: RankingDataset, labels: int, seed: int = 0) -> np.ndarray:
    """Scores of the programs that `draw_labels` leaves, given those that it draws; no gradient step.

    Returns:
        (N,) of float64, NaN where a program is one of the labels.

    Raises:
        NoContextError: the model takes no context, and there are labels.
    """
    if not labels:
        return model.score(data.features)
    if not isinstance(model, ContextModel):
        raise NoContextError(
            f"a {model.arch} takes no measured programs as context",
            remedy="learn from them by `tchub adapt`, or choose a tilenet",
            arch=model.arch,
        )
    return scores_given(model, data, draw_labels(data, labels, seed))


def scores_given(model: ContextModel, data: RankingDataset, known: np.ndarray) -> np.ndarray:
    """(N,) scores of the programs that are not `known` (N,), each task's known ones being the context; else NaN."""
    scores = np.full(len(data), np.nan)
    for members in data.members:
        have, rest = members[known[members]], members[~known[members]]
        if len(rest):
            scores[rest] = model.score_given(data.features[rest], data.features[have], data.latency[have])
    return scores


def evaluate_unknown(data: RankingDataset, known: np.ndarray, scores: np.ndarray) -> dict[str, float]:
    """`evaluate_scores` on the programs that are not `known` (N,), by scores (N,)."""
    rest = np.flatnonzero(~known)
    return evaluate_scores(scores[rest], data.latency[rest], data.group[rest], data.task_weights)
