"""Which way of learning ranks unmeasured programs best, told by the measured ones alone.

The labels of each task are split at random into folds. A model learns from all folds but one and ranks the programs of
that one, with the programs it learnt from as context where it takes any. Only pairs within a fold count: with one
program learnt and one not, a model that remembers the first would seem to know the second. Programs that a model has
learnt before are learnt here again, and judge nothing (`Lesson.fresh`).

The best of several ways looks better than it is on the pairs that it was chosen by. `nested_gain` chooses on the other
folds, and counts on the one that had no say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ..models import CostModel
from ..training.dataset import RankingDataset
from ..training.metrics import count_pairs, tally_pairs
from .in_context import informed_scores
from .shrink import STRENGTHS, best_strength, blend

if TYPE_CHECKING:
    from .methods import Learnt, Lesson

Learn = Callable[[CostModel, "Lesson"], "Learnt"]
# Pairs below which nothing is decided: the standard error of an accuracy is then above 9 points.
MIN_PAIRS = 30
# Labels of a typical task from which on three folds, which leave more to learn from, have pairs enough.
THREE_FOLDS = 9


@dataclass(frozen=True, eq=False)
class CrossValidated:
    """What cross-validation says of one method.

    Attributes:
        shares: the strengths that were tried, of the weights between start and end.
        right: (1 + strengths, folds, T) float64, pairs in the right order, a tie half; the first row is of the model
            to beat, nothing learnt.
        total: (folds, T) float64, pairs.
    """

    shares: tuple[float, ...]
    right: np.ndarray
    total: np.ndarray

    @property
    def pairs(self) -> int:
        """That it was measured on."""
        return int(self.total.sum())

    @property
    def base(self) -> float:
        """Pairwise accuracy of the model to beat."""
        return _mean_accuracy(self.right[0], self.total)

    @property
    def strengths(self) -> tuple[tuple[float, float], ...]:
        """(strength, pairwise accuracy) of each."""
        return self._accuracies(np.ones(len(self.total), dtype=bool))

    @property
    def strength(self) -> float:
        """The best strength."""
        return best_strength(self.strengths)

    @property
    def accuracy(self) -> float:
        """Of the best strength, on the pairs that chose it."""
        return dict(self.strengths)[self.strength]

    def best_without(self, fold: int) -> tuple[float, int]:
        """Accuracy on all folds but one of the strength that is best there, and the row of that strength."""
        found = self._accuracies(np.arange(len(self.total)) != fold)
        best = best_strength(found)
        return dict(found)[best], 1 + self.shares.index(best)

    def _accuracies(self, folds: np.ndarray) -> tuple[tuple[float, float], ...]:
        total = self.total[folds]
        found = (_mean_accuracy(right, total) for right in self.right[1:, folds])
        return tuple(zip(self.shares, found, strict=True))


def nested_gain(judged: Sequence[CrossValidated]) -> float:
    """Gain in pairwise accuracy of choosing by cross-validation, free of the luck of the best.

    Method and strength are chosen on all folds but one, as `choose_method` chooses them on all, and count on that one.

    Args:
        judged: the methods that compete, of the same labels and folds.

    Returns:
        The gain over the model to beat.
    """
    total = judged[0].total
    right = np.empty_like(total)
    for fold in range(len(total)):
        (_, row), winner = max(((one.best_without(fold), one) for one in judged), key=lambda found: found[0][0])
        right[fold] = winner.right[row, fold]
    return _mean_accuracy(right, total) - judged[0].base


def cross_validate(learn: Learn, start: CostModel, lesson: Lesson, *, near: bool) -> CrossValidated | None:
    """Judge a method by the labels to learn from.

    Args:
        learn: how to learn.
        start: of the method, which knows none of the labels.
        lesson: base, labels and settings.
        near: whether weights between the start and what is learnt make sense.

    Returns:
        None where the labels that judge make too few pairs (`MIN_PAIRS`).
    """
    fold = make_folds(lesson.data, lesson.seed)
    judging = fold if lesson.fresh is None else np.where(lesson.fresh, fold, -1)
    pairs = sum(count_pairs(lesson.data.latency[at]) for at in _groups(lesson.data, judging))
    if pairs < MIN_PAIRS:
        return None
    strengths = STRENGTHS if near else (1.0,)
    scores = np.full((1 + len(strengths), len(lesson.data)), np.nan)
    config = replace(lesson.config, refit=False)
    rival, view = lesson.to_beat or lesson.base, lesson.base_view
    for part in range(fold.max() + 1):
        held, rest = np.flatnonzero(fold == part), np.flatnonzero(fold != part)
        known = lesson.data.take(rest)
        features, group = lesson.data.features[held], lesson.data.group[held]
        scores[0, held] = informed_scores(rival, view[held], group, known, view[rest])
        learnt = learn(start, replace(lesson, data=known, config=config))
        for row, strength in enumerate(strengths, start=1):
            model = blend(start, learnt.model, strength)
            scores[row, held] = informed_scores(model, features, group, known)
    right, total = zip(*(_tally(lesson.data, judging, row) for row in scores), strict=True)
    return CrossValidated(strengths, np.stack(right), total[0])


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
    """The programs of each task and fold; a fold of -1 is none."""
    return [members[fold[members] == part] for members in data.members for part in range(fold.max() + 1)]


def _tally(data: RankingDataset, fold: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(folds, T) pairs of one task and fold in the right order, a tie being half right; and all such pairs."""
    right, total = np.zeros((2, fold.max() + 1, len(data.task_ids)))
    for at in _groups(data, fold):
        if len(at):
            place = fold[at[0]], data.group[at[0]]
            right[place], total[place] = tally_pairs(scores[at], data.latency[at])
    return right, total


def _mean_accuracy(right: np.ndarray, total: np.ndarray) -> float:
    """Mean over tasks of the share of right pairs, each (folds, T); a coin's share where there is none."""
    right, total = right.sum(axis=0), total.sum(axis=0)
    return float((right[total > 0] / total[total > 0]).mean()) if total.any() else 0.5
