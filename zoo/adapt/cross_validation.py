"""Which way of learning ranks unmeasured programs best, told by the measured ones alone.

The labels of each task are split at random into folds. A model learns from all folds but one and ranks the programs of
that one, with the programs it learnt from as context where it takes any. Only pairs within a fold count: with one
program learnt and one not, a model that remembers the first would seem to know the second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ..models import CostModel
from ..training.dataset import RankingDataset
from ..training.metrics import PAIR_RATIO
from .in_context import informed_scores
from .shrink import STRENGTHS, best_strength, blend

if TYPE_CHECKING:
    from .methods import Learnt, Lesson

Learn = Callable[[CostModel, "Lesson"], "Learnt"]
# Pairs below which nothing is decided: the standard error of an accuracy is then above 9 points.
MIN_PAIRS = 30
# Labels of a typical task from which on three folds, which leave more to learn from, have pairs enough.
THREE_FOLDS = 9


@dataclass(frozen=True)
class CrossValidated:
    """What cross-validation says of one method.

    Attributes:
        base: pairwise accuracy of the base, nothing learnt.
        strengths: (strength, pairwise accuracy) of the weights between start and end.
        pairs: that it was measured on.
    """

    base: float
    strengths: tuple[tuple[float, float], ...]
    pairs: int

    @property
    def strength(self) -> float:
        """The best strength."""
        return best_strength(self.strengths)

    @property
    def accuracy(self) -> float:
        """Of the best strength."""
        return dict(self.strengths)[self.strength]

    @property
    def gain(self) -> float:
        """Over the base."""
        return self.accuracy - self.base


def cross_validate(learn: Learn, start: CostModel, lesson: Lesson, *, near: bool) -> CrossValidated | None:
    """Judge a method by the labels to learn from.

    Args:
        learn: how to learn.
        start: of the method, which knows none of the labels.
        lesson: base, labels and settings.
        near: whether weights between the start and what is learnt make sense.

    Returns:
        None where the labels make too few pairs (`MIN_PAIRS`).
    """
    fold = make_folds(lesson.data, lesson.seed)
    pairs = sum(int(_pairs(lesson.data.latency[at]).sum()) for at in _groups(lesson.data, fold))
    if pairs < MIN_PAIRS:
        return None
    strengths = STRENGTHS if near else (1.0,)
    scores = np.full((1 + len(strengths), len(lesson.data)), np.nan)
    config = replace(lesson.config, refit=False)
    for part in range(fold.max() + 1):
        held, rest = np.flatnonzero(fold == part), np.flatnonzero(fold != part)
        known = lesson.data.take(rest)
        features, group = lesson.data.features[held], lesson.data.group[held]
        view = lesson.base_view
        scores[0, held] = informed_scores(lesson.base, view[held], group, known, view[rest])
        learnt = learn(start, replace(lesson, data=known, config=config))
        for row, strength in enumerate(strengths, start=1):
            model = blend(start, learnt.model, strength)
            scores[row, held] = informed_scores(model, features, group, known)
    base, *found = (_accuracy(lesson.data, fold, row) for row in scores)
    return CrossValidated(base, tuple(zip(strengths, found, strict=True)), pairs)


def make_folds(data: RankingDataset, seed: int) -> np.ndarray:
    """(N,) int64 fold of each program: each task is dealt out evenly, in random order."""
    sizes = [len(members) for members in data.members if len(members)]
    folds = 3 if np.median(sizes) >= THREE_FOLDS else 2
    rng = np.random.default_rng([seed, 7])
    fold = np.empty(len(data), np.int64)
    for members in data.members:
        fold[rng.permutation(members)] = (np.arange(len(members)) + rng.integers(folds)) % folds
    return fold


def _groups(data: RankingDataset, fold: np.ndarray) -> list[np.ndarray]:
    """The programs of each task and fold."""
    return [members[fold[members] == part] for members in data.members for part in range(fold.max() + 1)]


def _pairs(latency: np.ndarray) -> np.ndarray:
    """(n, n) bool: row is faster than column by more than the noise."""
    return latency[:, None] * PAIR_RATIO < latency[None, :]


def _accuracy(data: RankingDataset, fold: np.ndarray, scores: np.ndarray) -> float:
    """Mean over tasks of the share of pairs of one task and fold in the right order; a tie is half right."""
    right, total = np.zeros(len(data.task_ids)), np.zeros(len(data.task_ids))
    for at in _groups(data, fold):
        pairs = _pairs(data.latency[at])
        if pairs.any():
            ahead = np.sign(scores[at][:, None] - scores[at][None, :])
            task = data.group[at[0]]
            right[task] += ((ahead + 1) / 2)[pairs].sum()
            total[task] += pairs.sum()
    return float((right[total > 0] / total[total > 0]).mean())
