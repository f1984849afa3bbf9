"""Fasor: few tasks that are unlike each other (paper Fasor, section 4.2)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from .pool import Pool, Selection, take_turns
from .predictions import PoolPredictions
from .sampler import Sampler, SamplingRequest, StratifiedSampler, finite_scores

# The paper's k.
TASKS = 10
# Programs of a task whose mean describes it.
_PROGRAMS = 64


class FasorSampler(Sampler):
    """Programs of the k tasks that are least alike, drawn at random, level over those tasks.

    Tasks are clustered by the Spearman similarity of the mean of their programs' features, here by k-center, and one
    task a cluster is taken. When these run out of programs, the next least similar ones are added. Without features the
    choice is stratified.
    """

    name: ClassVar[str] = "fasor"

    def __init__(self, tasks: int = TASKS) -> None:
        self.tasks = tasks  # at least

    def pick(self, request: SamplingRequest) -> Selection:
        """O(n log n), and O(T^2) in the tasks."""
        rest, pool = request.shuffled(), request.pool
        if request.predictions is not None:
            finite_scores(request.predictions)
        tasks, features = _task_features(pool, request.predictions)
        if features is None:
            return StratifiedSampler().pick(request)
        order = tasks[dissimilar(features)]
        free = np.bincount(pool.task[rest], minlength=len(pool.ops))[order]
        taken = max(self.tasks, int(np.searchsorted(np.cumsum(free), min(request.k, len(rest)))) + 1)
        rest = rest[np.isin(pool.task[rest], order[:taken])]
        turn = take_turns(pool.task[rest], pool.counts(request.labeled))
        return request.picked(rest[np.argsort(turn, kind="stable")][: request.k])


def dissimilar(features: np.ndarray) -> np.ndarray:
    """Return an order (T,) of tasks with features (T, F): each is the least similar to all before it (Spearman)."""
    similarity = spearman(features)
    first = int(similarity.sum(axis=1).argmax())
    order, nearest = [first], similarity[first].copy()
    nearest[first] = np.inf
    for _ in range(len(features) - 1):
        order.append(int(nearest.argmin()))
        np.maximum(nearest, similarity[order[-1]], out=nearest)
        nearest[order[-1]] = np.inf
    return np.array(order, dtype=np.int64)


def spearman(features: np.ndarray) -> np.ndarray:
    """Return Spearman's rank correlation (T, T) of rows (T, F); ties have their mean rank, constant rows 0."""
    from scipy.stats import rankdata

    ranks = rankdata(features, axis=1)
    ranks = ranks - ranks.mean(axis=1, keepdims=True)
    norms = np.sqrt((ranks**2).sum(axis=1, keepdims=True))
    ranks = ranks / np.where(norms > 0, norms, 1)
    return ranks @ ranks.T


def _task_features(pool: Pool, predictions: PoolPredictions | None) -> tuple[np.ndarray, np.ndarray | None]:
    """The tasks that have programs, and (their number, F) numbers that describe them; None without any.

    The programs that describe a task are the same in every round: others would make other tasks dissimilar.
    """
    tasks = np.unique(pool.task)
    if predictions is None or predictions.features is None:
        return tasks, None
    some = np.random.default_rng(0).permutation(len(pool))
    some = some[take_turns(pool.task[some], np.zeros(len(pool.ops), dtype=np.int64)) < _PROGRAMS]
    flat = predictions.features[some].reshape(len(some), -1).astype(np.float64)
    own = pool.task[some]
    rows = np.stack([flat[own == task].mean(axis=0) for task in tasks])
    varying = np.ptp(rows, axis=0) > 0
    rows = rows[:, varying]
    # Without columns of mean 0 and deviation 1 all tasks would agree in which columns are large.
    return tasks, (rows - rows.mean(axis=0)) / rows.std(axis=0) if varying.any() else None
