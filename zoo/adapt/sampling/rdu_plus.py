"""`rdu+`, tchub's own: what a label would teach, pick by pick and per second, level over types and tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..laplace import LastLayer
from ..view import ModelView
from .budgets import task_budgets
from .pool import Pool
from .protocol import finite_scores
from .reason import Selection


@dataclass(frozen=True)
class RDUPlusConfig:
    """How `rdu+` weighs.

    Attributes:
        cost: power of the expected seconds by which a gain is divided: 1 is gain per second, 0 looks at gain alone.
        chunk: programs of a task among which every pick looks; a larger task is cut at random.
    """

    cost: float = 1.0
    chunk: int = 4096


class RDUPlusSampler:
    """RDU's three criteria with other means.

    Representative: types share the budget as RDU has it, and within a type all tasks have the same number, over
    all rounds: a ranking is learnt within tasks, so that a task without labels teaches nothing.

    Uncertain: not how far a score lies from the others, but the variance that the weights of the last layer,
    given all labels, leave to it (`laplace`). A label of variance s^2 under noise n tells log(1 + s^2 / n) / 2
    of information on these weights, in nats.

    Diverse: each pick is taken for measured before the next, a rank-one update of the posterior that needs no
    label. Of two programs with like embeddings the second then tells little. Greedy as it is, this is the
    maximum of the batch's determinant up to a known factor (Nemhauser et al. 1978, a determinantal point
    process's mode), and no distance has to be weighed against the uncertainty.

    What a label tells is divided by the seconds that it costs, `ModelView.cost`. Without a model the choice
    within a task is random. O(n p^2 + sum over tasks of picks x programs x p) for p directions.
    """

    name: ClassVar[str] = "rdu+"

    def __init__(self, config: RDUPlusConfig | None = None) -> None:
        self.config = config or RDUPlusConfig()

    def select(
        self,
        pool: Pool,
        labeled: Sequence[int] | np.ndarray,
        k: int,
        view: ModelView | None,
        rng: np.random.Generator,
        *,
        round: int = 1,
    ) -> Selection:
        """See `Sampler.select`."""
        rest = rng.permutation(pool.free(labeled, k))
        budgets = task_budgets(pool, labeled, k, rng)
        parts = list(_chunks(pool, rest, budgets, self.config.chunk, rng))
        if view is None:
            return Selection.of(pool, np.concatenate([members[:share] for members, share in parts]), round)
        finite_scores(view)
        belief = _Belief(view.last_layer, view.cost() ** -self.config.cost)
        table = np.concatenate([belief.pick(members, share) for members, share in parts])
        return Selection.of(
            pool,
            table[:, 0].astype(np.int64),
            round,
            diversity=table[:, 1],
            uncertainty=table[:, 2],
            total=table[:, 3],
        )


def _chunks(
    pool: Pool, rest: np.ndarray, budgets: np.ndarray, size: int, rng: np.random.Generator
) -> Iterator[tuple[np.ndarray, int]]:
    """The open programs of each task, in pieces, with the piece's part of the task's budget; tasks in random order."""
    ordered = rest[np.argsort(pool.task[rest], kind="stable")]
    ends = np.cumsum(pool.counts(rest))
    # What one task's picks teach counts against the next task's: none is always the last.
    for task in rng.permutation(np.flatnonzero(budgets)):
        members = ordered[ends[task - 1] if task else 0 : ends[task]]
        pieces = -(-len(members) // size)
        cuts = np.linspace(0, len(members), pieces + 1).astype(int)
        shares = np.diff(np.floor(cuts * (budgets[task] / len(members)) + 1e-9).astype(int))
        for start, end, share in zip(cuts[:-1], cuts[1:], shares.tolist(), strict=True):
            yield members[start:end], share


class _Belief:
    """What is known of the last layer's weights, as picks are taken for measured.

    Args:
        layer: the posterior given the labels.
        worth: (N,) what a nat is worth of each program.
    """

    def __init__(self, layer: LastLayer, worth: np.ndarray) -> None:
        self._inputs, self._noise, self._worth = layer.inputs, layer.noise, worth
        self._covariance = layer.covariance.copy()

    def pick(self, members: np.ndarray, count: int) -> np.ndarray:
        """Picks among the programs at `members`: (count, 4) of place, diversity, uncertainty and total of each.

        Diversity is the part of the variance that no earlier pick of this batch has explained.
        """
        inputs, worth = self._inputs[members].astype(np.float64), self._worth[members]
        variance = np.maximum(np.einsum("np,np->n", inputs @ self._covariance, inputs), 0.0)
        before = np.maximum(variance, np.finfo(float).tiny)
        open_ = np.zeros(len(members))
        rows = np.empty((count, 4))
        for number in range(count):
            gain = 0.5 * np.log1p(variance / self._noise) * worth + open_
            best = int(gain.argmax())
            doubt = variance[best]
            rows[number] = members[best], doubt / before[best], np.sqrt(doubt), gain[best]
            open_[best] = -np.inf
            variance = np.maximum(variance - self._learn(inputs[best], inputs), 0.0)
        return rows

    def _learn(self, taken: np.ndarray, inputs: np.ndarray) -> np.ndarray:
        """Take a program for measured; returns by how much the variance of others (n, p) falls, (n,)."""
        direction = self._covariance @ taken
        direction /= np.sqrt(self._noise + float(direction @ taken))
        self._covariance -= np.outer(direction, direction)
        return (inputs @ direction) ** 2
