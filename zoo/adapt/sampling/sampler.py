"""`Sampler`, the interface of all samplers, and those that need no uncertainty: random, stratified, strata."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..errors import AdaptError
from .pool import Pool, Reason, Selection, take_turns, task_budgets
from .predictions import PoolPredictions


@dataclass(frozen=True)
class SamplingRequest:
    """The arguments of `Sampler.select`."""

    pool: Pool
    labeled: np.ndarray
    k: int
    predictions: PoolPredictions | None
    rng: np.random.Generator
    round: int

    def shuffled(self) -> np.ndarray:
        """Return the programs without a label in random order, so that ties are broken at random."""
        return self.rng.permutation(self.pool.free(self.labeled, self.k))

    def informed(self) -> PoolPredictions | None:
        """Return the predictions, where there are labels to be informed by."""
        return self.predictions if len(self.labeled) else None

    def picked(self, indices: np.ndarray, **numbers: np.ndarray) -> Selection:
        """Return a selection of indices (k,), with `diversity`, `uncertainty` and `total` of each if given."""
        columns = {name: values.tolist() for name, values in numbers.items()}
        reasons = tuple(
            Reason(index, self.pool.op(index), self.round, **{name: values[i] for name, values in columns.items()})
            for i, index in enumerate(indices.tolist())
        )
        return Selection(indices.astype(np.int64), reasons)


class Sampler(ABC):
    """Chooses unlabeled programs of a pool to measure next; a sampler is a `name` and `pick`."""

    name: ClassVar[str]

    def select(
        self,
        pool: Pool,
        labeled: Sequence[int] | np.ndarray,
        k: int,
        predictions: PoolPredictions | None,
        rng: np.random.Generator,
        *,
        round: int = 1,
    ) -> Selection:
        """Pick `k` programs that are not in `labeled` (fewer when fewer are left).

        Args:
            pool: all candidates; labeled: (m,) indices of those that need no label any more.
            predictions: of the model for the pool; None before there is a model.
            rng: the same state gives the same picks; round: its number, for the reasons.

        Raises:
            AdaptError: nothing is left to pick, or the model's scores are not finite.
        """
        return self.pick(SamplingRequest(pool, np.asarray(labeled, dtype=np.int64), k, predictions, rng, round))

    @abstractmethod
    def pick(self, request: SamplingRequest) -> Selection:
        """Return the answer of `select`."""


def finite_scores(predictions: PoolPredictions) -> np.ndarray:
    """Return the model's scores, (N,); AdaptError if one is NaN or infinite."""
    scores = predictions.scores
    wrong = int((~np.isfinite(scores)).sum())
    if wrong:
        raise AdaptError(
            f"{wrong} of {len(scores)} predictions are not finite",
            remedy="the model has diverged: lower the learning rate or start from the published checkpoint",
        )
    return scores


def normalise(scores: np.ndarray) -> np.ndarray:
    """Scale finite scores to [0, 1] over the pool; equal scores become 0."""
    span = np.ptp(scores) if len(scores) else 0.0
    return (scores - scores.min()) / span if span > 0 else np.zeros_like(scores)


# Programs among which a greedy sampler looks at all pairs.
CHUNK = 4096


def chunks(kind: np.ndarray, budgets: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Cut programs, which are in random order, into parts of at most `CHUNK`, each with its share of the budgets.

    Args:
        kind: (n,) kind of each program; budgets: of each kind (K,), at most as many as it has programs.
    """
    cuts = np.linspace(0, len(kind), -(-len(kind) // CHUNK) + 1).astype(int)
    before = np.stack([np.bincount(kind[:cut], minlength=len(budgets)) for cut in cuts])
    shares = np.diff(before * budgets // np.maximum(before[-1], 1), axis=0)  # of no kind more than the part has
    for start, end, share in zip(cuts[:-1], cuts[1:], shares, strict=True):
        yield slice(start, end), share


class RandomSampler(Sampler):
    """Uniform choice without replacement."""

    name: ClassVar[str] = "random"

    def pick(self, request: SamplingRequest) -> Selection:
        rest = request.pool.free(request.labeled, request.k)
        return request.picked(request.rng.choice(rest, size=min(request.k, len(rest)), replace=False))


class StratifiedSampler(Sampler):
    """Random choice that gives every task the same number of programs, those labeled before counted in."""

    name: ClassVar[str] = "stratified"

    def pick(self, request: SamplingRequest) -> Selection:
        rest = request.shuffled()
        turn = take_turns(request.pool.task[rest], request.pool.counts(request.labeled))
        return request.picked(rest[np.argsort(turn, kind="stable")][: request.k])


class StrataSampler(Sampler):
    """Cuts each task's open programs, in the order of the model's scores, into as many parts as it gets labels.

    One program of each part is drawn. Types and tasks share the budget as in `rdu+`. It needs no label, so that a model
    pretrained on other devices can choose the first batch; without a model the choice within a task is random.
    """

    name: ClassVar[str] = "strata"

    def pick(self, request: SamplingRequest) -> Selection:
        rest, pool = request.shuffled(), request.pool
        budgets = task_budgets(pool, request.labeled, request.k, request.rng)
        if request.predictions is not None:
            rest = rest[np.argsort(finite_scores(request.predictions)[rest], kind="stable")]
        ordered = rest[np.argsort(pool.task[rest], kind="stable")]
        members = np.split(ordered, np.cumsum(pool.counts(rest))[:-1])
        picks = [
            [request.rng.choice(part) for part in np.array_split(members[task], budgets[task])]
            for task in np.flatnonzero(budgets)
        ]
        return request.picked(np.concatenate(picks).astype(np.int64))
