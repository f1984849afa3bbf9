"""`Sampler`, the interface of all samplers, and those that need no uncertainty: random, stratified, strata, fasor."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..errors import AdaptError
from .pool import Pool, Reason, Selection, take_turns, task_budgets
from .predictions import PoolPredictions

# Tasks that Fasor takes at least, the paper's k; programs of a task whose mean describes it.
FASOR_TASKS, _PROGRAMS = 10, 64


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
        members = pool.by_task(rest)
        picks = [
            [request.rng.choice(part) for part in np.array_split(members[task], budgets[task])]
            for task in np.flatnonzero(budgets)
        ]
        return request.picked(np.concatenate(picks).astype(np.int64))


class FasorSampler(Sampler):
    """Programs of the k tasks that are least alike, drawn at random, level over those tasks.

    Tasks are clustered by the Spearman similarity of the mean of their programs' features, here by k-center, and one
    task a cluster is taken. When these run out of programs, the next least similar ones are added. Without features the
    choice is stratified.
    """

    name: ClassVar[str] = "fasor"

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
        taken = max(FASOR_TASKS, int(np.searchsorted(np.cumsum(free), min(request.k, len(rest)))) + 1)
        rest = rest[np.isin(pool.task[rest], order[:taken])]
        turn = take_turns(pool.task[rest], pool.counts(request.labeled))
        return request.picked(rest[np.argsort(turn, kind="stable")][: request.k])


def dissimilar(features: np.ndarray) -> np.ndarray:
    """Return an order (T,) of tasks with features (T, F): each is the least similar to all before it (Spearman)."""
    from scipy.stats import rankdata

    with np.errstate(invalid="ignore"):  # a constant row is like no other
        similarity = np.nan_to_num(np.atleast_2d(np.corrcoef(rankdata(features, axis=1))))
    first = int(similarity.sum(axis=1).argmax())
    order, nearest = [first], similarity[first].copy()
    nearest[first] = np.inf
    for _ in range(len(features) - 1):
        order.append(int(nearest.argmin()))
        np.maximum(nearest, similarity[order[-1]], out=nearest)
        nearest[order[-1]] = np.inf
    return np.array(order, dtype=np.int64)


def _task_features(pool: Pool, predictions: PoolPredictions | None) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the tasks that have programs, and (their number, F) numbers that describe them; None without any.

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
