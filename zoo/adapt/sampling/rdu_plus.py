"""`rdu+`, tchub's own: a block of labels a task, level over its scores, there the most information per second."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from .pool import Pool, Selection, task_budgets
from .predictions import LastLayerPosterior
from .sampler import Sampler, SamplingRequest, finite_scores


@dataclass(frozen=True)
class RDUPlusConfig:
    """How `rdu+` weighs.

    Attributes:
        cost: power of the expected seconds by which a gain is divided: 1 is gain per second, 0 looks at gain alone.
        block: labels that a task gets before another one is begun, where the tasks stand for others. n labels of one
            task are n (n - 1) / 2 pairs in order, and as many tasks with one label each are none. Tasks that are to be
            ranked themselves (`Pool.to_rank`) are level, since a label of the very task teaches most.
    """

    cost: float = 1.0
    block: int = 16


class RDUPlusSampler(Sampler):
    """RDU's three criteria with other means.

    Representative: types share the budget as RDU has it, and within a type all tasks have the same number, over
    all rounds, in blocks of 16: a ranking is learnt within tasks, so that a task with one label teaches nothing. A
    budget of a few programs a task goes to some tasks, and the others follow as there is more. Where the tasks
    themselves are to be ranked all are level.

    Diverse: scores compare within a task alone, so each task's open programs are put in the order of their
    scores and cut into as many even strata as there are picks, one pick each. And each pick is taken for measured
    before the next, a rank-one update of the posterior that needs no label: of two programs with like embeddings the
    second then adds little (greedy, as one finds the mode of a determinantal point process).

    Uncertain: not how far a score lies from the others, but the variance s^2 that the weights of the last layer,
    given all labels, leave to it (`predictions`). Under noise n a label tells log(1 + s^2 / n) / 2 nats of these
    weights; it is divided by the seconds that it costs, `PoolPredictions.cost`, and the most per second is picked in
    each stratum. Where all programs compete, those that are unlike all others win, and the model learns from
    oddities: on validation tasks that was worse than a level random choice as often as it was better.

    Without a model the choice within a task is random. O(n log n + n p^2 + k p^2) for p directions.

    Block and cost were chosen on validation tasks; `python -m scripts.benchmarks choices` changes each of them alone,
    and `python -m scripts.benchmarks sampling --split val` compares the samplers there. Which tasks come first made no
    difference: those least alike, or least sure, or any.
    """

    name: ClassVar[str] = "rdu+"

    def __init__(self, config: RDUPlusConfig | None = None) -> None:
        self.config = config or RDUPlusConfig()

    def pick(self, request: SamplingRequest) -> Selection:
        rest, predictions = request.shuffled(), request.predictions
        budgets = task_budgets(request.pool, request.labeled, request.k, request.rng, self._block(request.pool))
        if predictions is None:
            picked = [members[: budgets[task]] for task, members in _by_task(request.pool, rest, budgets, request.rng)]
            return request.picked(np.concatenate(picked))
        scores = finite_scores(predictions)
        belief = _Belief(predictions.last_layer, predictions.cost() ** -self.config.cost)
        rows = [
            belief.pick(stratum)
            for task, members in _by_task(request.pool, rest, budgets, request.rng)
            for stratum in np.array_split(members[np.argsort(-scores[members], kind="stable")], budgets[task])
        ]
        index, diversity, uncertainty, total = np.array(rows).T
        numbers = {"diversity": diversity, "uncertainty": uncertainty, "total": total}
        return request.picked(index.astype(np.int64), **numbers)

    def _block(self, pool: Pool) -> int:
        return 1 if pool.to_rank else self.config.block


def _by_task(
    pool: Pool, rest: np.ndarray, budgets: np.ndarray, rng: np.random.Generator
) -> Iterator[tuple[int, np.ndarray]]:
    """Each task that has a budget, with its open programs in the order given; the tasks in random order."""
    ordered = rest[np.argsort(pool.task[rest], kind="stable")]
    ends = np.cumsum(pool.counts(rest))
    # What one task's picks teach counts against the next task's: none is always the last.
    for task in rng.permutation(np.flatnonzero(budgets)).tolist():
        yield task, ordered[ends[task - 1] if task else 0 : ends[task]]


class _Belief:
    """The posterior of the last layer's weights, as picks are taken for measured.

    Args:
        layer: the posterior given the labels.
        worth: (N,) what a nat is worth of each program.
    """

    def __init__(self, layer: LastLayerPosterior, worth: np.ndarray) -> None:
        self._inputs, self._noise, self._worth = layer.inputs, layer.noise, worth
        self._labels = layer.covariance
        self._covariance = layer.covariance.copy()

    def pick(self, members: np.ndarray) -> tuple[float, float, float, float]:
        """The program that teaches most for its worth: index, diversity, uncertainty and total.

        Diversity is the part of the variance given the labels that no earlier pick of the batch has explained.
        """
        inputs = self._inputs[members].astype(np.float64)
        variance = np.maximum(np.einsum("np,np->n", inputs @ self._covariance, inputs), 0.0)
        gain = 0.5 * np.log1p(variance / self._noise) * self._worth[members]
        best = int(gain.argmax())
        taken, doubt = inputs[best], float(variance[best])
        before = float(taken @ self._labels @ taken)
        direction = self._covariance @ taken / np.sqrt(self._noise + doubt)
        self._covariance -= np.outer(direction, direction)
        return float(members[best]), doubt / before if before > 0 else 1.0, np.sqrt(doubt), float(gain[best])
