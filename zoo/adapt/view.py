"""`ModelView`: what a sampler may ask a model about a pool, computed when it is asked first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from .laplace import LastLayer, fit_last_layer, task_means

if TYPE_CHECKING:
    from ..models import CostModel

# The slowest program known costs this many times the best guess at most: a fit to few labels may say anything.
_SLOWEST = 10.0


@dataclass(frozen=True)
class MeasuringCost:
    """What it takes to measure one program.

    Attributes:
        build: seconds to build it, as measured so far.
        runs: how often it runs.
    """

    build: float = 1.0
    runs: float = 10.0

    def seconds(self, latency: np.ndarray) -> np.ndarray:
        """Of programs of these latencies (seconds); never nothing, since gains are divided by it."""
        return np.maximum(self.build + self.runs * latency, np.finfo(float).eps)


class ModelView:
    """A model, a pool of N programs, and the labels known of m of them.

    Attributes:
        scores: (N,) float64 of the model; higher is faster.
        labeled: (m,) int64 places in the pool; latency: (m,) their seconds, NaN where a program failed.
        task: (N,) int64 task of each program; scores and latencies compare within a task alone.
        features: (N, rows, width) of the pool, None where nobody needs them.

    Args:
        scores, labeled, latency, task, features: the attributes; without `task` all programs are of one.
        embed: makes what `embeddings` returns.
        cost: of one measurement.
    """

    def __init__(
        self,
        scores: np.ndarray,
        labeled: Sequence[int] | np.ndarray,
        latency: np.ndarray,
        embed: Callable[[], np.ndarray],
        *,
        task: np.ndarray | None = None,
        features: np.ndarray | None = None,
        cost: MeasuringCost | None = None,
    ) -> None:
        self.scores = np.asarray(scores, dtype=np.float64)
        self.labeled = np.asarray(labeled, dtype=np.int64)
        self.latency = np.asarray(latency, dtype=np.float64)
        self.task = np.zeros(len(self.scores), dtype=np.int64) if task is None else np.asarray(task, dtype=np.int64)
        self.features = features
        self._embed = embed
        self._cost = cost or MeasuringCost()

    @classmethod
    def of(
        cls,
        model: CostModel,
        features: np.ndarray,
        labeled: Sequence[int] | np.ndarray,
        latency: np.ndarray,
        *,
        task: np.ndarray | None = None,
        cost: MeasuringCost | None = None,
    ) -> ModelView:
        """What `model` says of a pool.

        Args:
            model: any network of the zoo, trained on what is labeled or not.
            features: (N, rows, width) of the pool.
            labeled: (m,) places in the pool; latency: (m,) seconds, NaN where a program failed.
            task: (N,) task of each program; all of one unless given.
            cost: of one measurement.
        """

        def embed() -> np.ndarray:
            from .embedding import last_layer_inputs

            return last_layer_inputs(model, features)

        return cls(model.score(features), labeled, latency, embed, task=task, features=features, cost=cost)

    def embeddings(self) -> np.ndarray:
        """(N, d) float32: inputs of the model's last linear layer, summed over a program's rows where it has many.

        Raises:
            NotTrainableError: the model is made of trees.
        """
        return self._embeddings

    def uncertainty(self) -> np.ndarray:
        """(N,) float64: standard deviation of the score given the labels, as a part of log latency.

        Of a Gaussian posterior over the weights of the last layer; see `laplace`.
        """
        return self.last_layer.deviation()

    @cached_property
    def last_layer(self) -> LastLayer:
        """The posterior over the weights of the last layer."""
        return fit_last_layer(self.embeddings(), self.task, *self._known)

    def cost(self) -> np.ndarray:
        """(N,) float64: expected seconds to measure each program.

        Its latency is guessed from its score: log latency falls with the score, by one slope for all and from
        the mean of each task, or of all tasks where a task has no label.
        """
        return self._cost.seconds(self._expected_latency)

    @cached_property
    def _embeddings(self) -> np.ndarray:
        return self._embed()

    @cached_property
    def _known(self) -> tuple[np.ndarray, np.ndarray]:
        """Places of the labeled programs that ran, and their seconds."""
        ran = np.isfinite(self.latency) & (self.latency > 0)
        return self.labeled[ran], self.latency[ran]

    @cached_property
    def _expected_latency(self) -> np.ndarray:
        known, seconds = self._known
        if not len(known):
            return np.zeros_like(self.scores)
        tasks = int(self.task.max()) + 1
        logs, score, task = np.log(seconds), self.scores[known], self.task[known]
        logs_mean, score_mean = task_means(logs, task, tasks), task_means(score, task, tasks)
        spread = score - score_mean[task]
        slope = min(0.0, float(spread @ logs) / max(float(spread @ spread), 1e-12))
        seen = np.bincount(task, minlength=tasks) > 0
        level = np.where(seen, logs_mean - slope * score_mean, (logs - slope * score).mean())
        guess = level[self.task] + slope * self.scores
        return np.exp(np.clip(guess, logs.min() - np.log(_SLOWEST), logs.max() + np.log(_SLOWEST)))
