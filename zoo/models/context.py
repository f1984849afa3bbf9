"""Models that take the measured programs of a task as context: a Gaussian process over embeddings, and a few trees."""

from abc import abstractmethod

import numpy as np
import torch
from torch import Tensor

from .base import BATCH, CostModel
from .trees import grow_task_trees

# Below so many labels trees say nothing; at so many they count as much as the Gaussian process, if they err no more.
MIN_TREES, HALF_TREES = 8, 12
# Parts of the labels that are held back in turn, to see whether trees or the Gaussian process predict them better.
FOLDS = 4
# Programs of a task that are used as context at most, the last ones: the cost of the posterior is its cube.
MAX_CONTEXT = 512


class ContextModel(CostModel):
    """A model that measured programs of a task correct, with no gradient step: a Gaussian process over embeddings.

    Subclasses give in `describe` the score and the embedding of a program, (batch, 1 + embedding). tchub's own.
    """

    @abstractmethod
    def condition(self, scores: Tensor, context: Tensor, measured: Tensor) -> tuple[Tensor, Tensor]:
        """Return the level (tasks, 1) and the weights (tasks, n, 1) of measured programs.

        Args:
            scores: (tasks, n); context: (tasks, n, embedding), both of `describe`.
            measured: (tasks, n), their -log(latency).
        """

    @abstractmethod
    def correct(self, scores: Tensor, embeddings: Tensor, context: Tensor, level: Tensor, weights: Tensor) -> Tensor:
        """Return scores (tasks, programs) corrected by measured programs, whose level and weights `condition` gave."""

    def score_given(self, features: np.ndarray, context: np.ndarray, latency: np.ndarray) -> np.ndarray:
        """Return estimates of -log(latency), (N,) of float64, in a task with measured programs; `score` without any.

        To ask more than once, make a `TaskPosterior`.

        Args:
            features: (N, 1, width) of the programs to be ranked.
            context: (n, 1, width) of the measured ones; latency: (n,) their seconds, finite and above 0. Of
                more than `MAX_CONTEXT` the last ones are used.
        """
        return TaskPosterior(self, context, latency).score(features)

    def rows(self, features: np.ndarray) -> Tensor:
        """Return `describe` of programs without gradients, in evaluation mode: (N, 1 + embedding) of float64."""
        weight, was_training = next(self.parameters()), self.training
        if was_training:
            self.eval()
        with torch.inference_mode():
            rows = self.describe(torch.from_numpy(features).to(weight.device, weight.dtype)).double()
        if was_training:
            self.train()
        return rows


class TaskPosterior:
    """Scores of a task's programs given its measured ones: weights of the process and trees are computed once.

    It holds while the model's weights do. The arguments are those of `ContextModel.score_given`.
    """

    def __init__(self, model: ContextModel, context: np.ndarray, latency: np.ndarray) -> None:
        self._model = model
        context, speed = context[-MAX_CONTEXT:], -np.log(np.asarray(latency[-MAX_CONTEXT:], np.float64))
        self._share = 0.0
        if not len(context):
            self._process = None
            return
        rows = model.rows(context)
        self._process = _Process(model, rows, speed)
        if len(context) >= MIN_TREES:
            self._share = share_of_trees(model, context, rows, speed)
            self._trees = TaskTrees(context, speed)

    def score(self, features: np.ndarray) -> np.ndarray:
        """Return (N,) of float64 for programs (N, 1, width), as `ContextModel.score_given`."""
        if self._process is None:
            return self._model.score(features)
        parts = [features[at : at + BATCH] for at in range(0, len(features), BATCH)] or [features]
        smooth = np.concatenate([self._process.predict(self._model.rows(part)) for part in parts])
        if not self._share:
            return smooth
        return (1 - self._share) * smooth + self._share * self._trees.predict(features)


class _Process:
    """-log(latency) by the Gaussian process alone, from `rows` (n, 1 + embedding) and speeds (n,) that are known."""

    def __init__(self, model: ContextModel, rows: Tensor, speed: np.ndarray) -> None:
        self._model, self._context = model, rows[None, :, 1:]
        with torch.inference_mode():
            measured = torch.from_numpy(speed).to(rows.device)[None]
            self._known = model.condition(rows[None, :, 0], self._context, measured)

    def predict(self, rows: Tensor) -> np.ndarray:
        with torch.inference_mode():
            scores = self._model.correct(rows[None, :, 0], rows[None, :, 1:], self._context, *self._known)
        return scores[0].cpu().numpy()


class TaskTrees:
    """-log(latency) by trees of the measured programs of one task alone: features (n, rows, width), speed (n,)."""

    def __init__(self, features: np.ndarray, speed: np.ndarray) -> None:
        # Trees learn differences from the mean: float32 labels far from 0 would tip splits of equal gain by the unit.
        self._level = speed.mean()
        self._trees = grow_task_trees(_flat(features), speed - self._level)

    def predict(self, features: np.ndarray) -> np.ndarray:
        return self._level + self._trees.inplace_predict(_flat(features))


def _flat(features: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(features.reshape(len(features), features.shape[1] * features.shape[2]))


def measured_scores(features: np.ndarray, measured: np.ndarray, latency: np.ndarray) -> np.ndarray:
    """Score programs of a task for which no model can be trusted, (N,): by its measured ones, equal for too few."""
    if len(latency) < MIN_TREES:
        return np.zeros(len(features))
    return TaskTrees(measured, -np.log(latency)).predict(features).astype(np.float64)


def share_of_trees(model: ContextModel, context: np.ndarray, rows: Tensor, speed: np.ndarray) -> float:
    """Return the trees' share, 0 to 1: it grows with the labels, and is cut where the trees err more than the process.

    The errors are those on labels held back, a quarter at a time.
    """
    order = np.lexsort((context[:, 0].sum(axis=1), speed))  # by what they are: their order must not matter
    fold = np.empty(len(context), np.int64)
    fold[order] = np.arange(len(context)) % FOLDS
    errors = np.zeros((2, len(context)))
    for part in range(FOLDS):
        held, rest = fold == part, fold != part
        smooth = _Process(model, rows[torch.from_numpy(rest)], speed[rest]).predict(rows[torch.from_numpy(held)])
        trees = TaskTrees(context[rest], speed[rest]).predict(context[held])
        errors[:, held] = smooth - speed[held], trees - speed[held]
    smooth, trees = np.square(errors).mean(axis=1) + 1e-12
    return float(min(1.0, smooth / trees)) * len(context) / (len(context) + HALF_TREES)
