"""What to measure next: the sampler interface, random choice, and RDU (paper TCL, section 4).

A further sampler is a class with `name` and `select`, added to `SAMPLERS`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from ..apportion import apportion_capped
from .errors import SamplingError, UnknownSamplerError


@dataclass(frozen=True)
class Pool:
    """The candidate programs of the tasks in hand.

    Attributes:
        task: (N,) int64, the task of each program.
        ops: operator type of each task; `task` indexes it.
    """

    task: np.ndarray
    ops: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.task)

    def op(self, index: int) -> str:
        """Operator type of a program."""
        return self.ops[int(self.task[index])]

    def op_distribution(self) -> dict[str, int]:
        """Tasks (the paper's assignments) in the pool by operator type: Calc_Dist of algorithm 1."""
        return dict(Counter(self.ops[task] for task in np.unique(self.task).tolist()))


@dataclass(frozen=True)
class Reason:
    """Why a program was picked.

    Attributes:
        index: its place in the pool.
        op: operator type.
        round: the round that picked it.
        diversity: d_s, equation 1; uncertainty: u_s, equations 2 and 3; total: t_s, line 26 of algorithm 1.
            All are NaN for a random pick.
    """

    index: int
    op: str
    round: int
    diversity: float = math.nan
    uncertainty: float = math.nan
    total: float = math.nan

    def as_dict(self) -> dict[str, Any]:
        """JSON form; unknown numbers are None."""
        return {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in asdict(self).items()}


@dataclass(frozen=True)
class Selection:
    """What a sampler picked, in the order of picking.

    Attributes:
        indices: (k,) int64 places in the pool, all different.
        reasons: one for each index.
    """

    indices: np.ndarray
    reasons: tuple[Reason, ...]


class Sampler(Protocol):
    """Chooses unlabeled programs of a pool to measure next."""

    name: ClassVar[str]

    def select(
        self,
        pool: Pool,
        labeled: Sequence[int] | np.ndarray,
        k: int,
        scores: np.ndarray | None,
        rng: np.random.Generator,
        *,
        round: int = 1,
    ) -> Selection:
        """Pick `k` programs that are not in `labeled` (fewer when fewer are left).

        Args:
            pool: all candidates, labeled ones included.
            labeled: places in the pool that need no label any more.
            k: how many to pick, >= 1.
            scores: (N,) the model's predictions, higher is faster; None before there is a model.
            rng: source of randomness; the same state gives the same picks.
            round: number of the round, for the reasons.

        Raises:
            SamplingError: nothing is left to pick, or scores are not finite.
        """
        ...


class RandomSampler:
    """Uniform choice without replacement."""

    name: ClassVar[str] = "random"

    def select(
        self,
        pool: Pool,
        labeled: Sequence[int] | np.ndarray,
        k: int,
        scores: np.ndarray | None,
        rng: np.random.Generator,
        *,
        round: int = 1,
    ) -> Selection:
        """See `Sampler.select`; `scores` are not used."""
        rest = _unlabeled(pool, labeled, k)
        indices = rng.choice(rest, size=min(k, len(rest)), replace=False)
        return Selection(indices, tuple(Reason(int(i), pool.op(i), round) for i in indices))


class StratifiedSampler:
    """Random choice that gives every task the same number of programs, those labeled before counted in."""

    name: ClassVar[str] = "stratified"

    def select(
        self,
        pool: Pool,
        labeled: Sequence[int] | np.ndarray,
        k: int,
        scores: np.ndarray | None,
        rng: np.random.Generator,
        *,
        round: int = 1,
    ) -> Selection:
        """See `Sampler.select`; `scores` are not used."""
        rest = rng.permutation(_unlabeled(pool, labeled, k))
        done = np.bincount(pool.task[np.asarray(labeled, dtype=np.int64)], minlength=len(pool.ops))
        by_task = np.argsort(pool.task[rest], kind="stable")
        tasks, starts, sizes = np.unique(pool.task[rest][by_task], return_index=True, return_counts=True)
        turn = np.empty(len(rest), dtype=np.int64)
        turn[by_task] = np.arange(len(rest)) - np.repeat(starts - done[tasks], sizes)
        indices = rest[np.argsort(turn, kind="stable")][:k]
        return Selection(indices, tuple(Reason(int(i), pool.op(i), round) for i in indices))


class RDUSampler:
    """Representativeness, diversity, uncertainty: algorithm 1 and equations 1 to 3 of paper TCL.

    Representative: operator types share the budget as they share the tasks of the pool, counted over all
    rounds, so that a type too rare for one round gets its programs in a later one. Within its type's budget,
    a program is picked for t_s = f(x) d_s(x) + u_s(x); each pick joins the labeled set before the next
    (line 30). The first call, without scores or labels, is Rand_Select of line 16.

    The model's scores are scaled to [0, 1] over the pool. Ties are broken at random.
    """

    name: ClassVar[str] = "rdu"

    def select(
        self,
        pool: Pool,
        labeled: Sequence[int] | np.ndarray,
        k: int,
        scores: np.ndarray | None,
        rng: np.random.Generator,
        *,
        round: int = 1,
    ) -> Selection:
        """See `Sampler.select`. O(n log n) for the first pick, O(n) for each further one."""
        if scores is None or len(labeled) == 0:
            return RandomSampler().select(pool, labeled, k, None, rng, round=round)
        rest = rng.permutation(_unlabeled(pool, labeled, k))
        f = normalise(scores)
        left = op_budgets(pool, labeled, min(k, len(rest)))
        known = f[np.asarray(labeled, dtype=np.int64)]
        return _greedy(pool, rest, f[rest], known, left=left, round=round)


SAMPLERS: dict[str, type[Sampler]] = {cls.name: cls for cls in (RandomSampler, StratifiedSampler, RDUSampler)}


def create_sampler(name: str | Sampler) -> Sampler:
    """A sampler by name; an instance is passed through.

    Raises:
        UnknownSamplerError: no sampler has this name.
    """
    if not isinstance(name, str):
        return name
    if name not in SAMPLERS:
        raise UnknownSamplerError(
            f"no sampler is called {name!r}", remedy=f"choose one of: {', '.join(SAMPLERS)}", sampler=name
        )
    return SAMPLERS[name]()


def normalise(scores: np.ndarray) -> np.ndarray:
    """Scale scores to [0, 1] over the pool; equal scores become 0.

    Raises:
        SamplingError: a score is NaN or infinite.
    """
    f = np.asarray(scores, dtype=np.float64)
    if not np.isfinite(f).all():
        raise SamplingError(
            f"{int((~np.isfinite(f)).sum())} of {len(f)} predictions are not finite",
            remedy="the model has diverged: lower the learning rate or start from the published checkpoint",
        )
    span = np.ptp(f)
    return (f - f.min()) / span if span > 0 else np.zeros_like(f)


def min_distance(f: np.ndarray, labeled: np.ndarray) -> np.ndarray:
    """Diversity d_s (equation 1): distance of each score to the nearest labeled score.

    The scores are one-dimensional: sorting the labeled ones replaces all pairs, O(n log m) for O(n m).

    Args:
        f: (n,) scores; labeled: (m,) scores, m >= 1.
    """
    known = np.sort(labeled)
    right = np.searchsorted(known, f).clip(0, len(known) - 1)
    left = (right - 1).clip(0)
    return np.minimum(np.abs(f - known[left]), np.abs(known[right] - f))


def joint_variance(f: np.ndarray, count: int, mean: float, spread: float) -> np.ndarray:
    """Uncertainty u_s (equations 2 and 3): variance of the labeled scores and the program's own.

    With the m labeled scores' mean and sum of squared deviations S, adding x gives the sum
    S + m / (m + 1) (x - mean)^2 (Welford), over m + 1 scores.

    Args:
        f: (n,) scores; count: m; mean: of the labeled scores; spread: S, their summed squared deviations.
    """
    return (spread + count / (count + 1) * (f - mean) ** 2) / (count + 1)


def op_budgets(pool: Pool, labeled: Sequence[int] | np.ndarray, k: int) -> dict[str, int]:
    """Programs of each operator type that may be picked now (lines 18 to 21); they sum to `k`.

    The share of a type is that of its tasks among the tasks of the pool, by largest remainders over all that
    was and will be picked; what a type cannot fill goes to the others.
    """
    weights = pool.op_distribution()
    caps = _count_by_op(pool, np.arange(len(pool)))
    done = _count_by_op(pool, np.asarray(labeled, dtype=np.int64))
    target = apportion_capped(len(labeled) + k, weights, caps)
    need = {op: max(0, target[op] - done.get(op, 0)) for op in weights}
    return apportion_capped(k, need, need)


def _count_by_op(pool: Pool, indices: np.ndarray) -> dict[str, int]:
    counts = np.bincount(pool.task[indices], minlength=len(pool.ops))
    by_op: dict[str, int] = dict.fromkeys(pool.ops, 0)
    for op, count in zip(pool.ops, counts.tolist(), strict=True):
        by_op[op] += count
    return by_op


def _unlabeled(pool: Pool, labeled: Sequence[int] | np.ndarray, k: int) -> np.ndarray:
    free = np.ones(len(pool), dtype=bool)
    free[np.asarray(labeled, dtype=np.int64)] = False
    rest = np.flatnonzero(free)
    if len(rest) == 0 or k < 1:
        raise SamplingError(
            f"nothing to pick: {len(rest)} of {len(pool)} candidates are unmeasured, {k} wanted",
            remedy="enlarge the pool (--pool) or give a budget of at least one program",
        )
    return rest


def _greedy(
    pool: Pool, rest: np.ndarray, f: np.ndarray, known: np.ndarray, *, left: dict[str, int], round: int
) -> Selection:
    """Lines 23 to 34: pick the best t_s whose type has budget left, add it to the labeled set, repeat."""
    names = list(left)
    op_of_task = np.array([names.index(op) if op in left else -1 for op in pool.ops])
    op = op_of_task[pool.task[rest]]
    distance = min_distance(f, known)
    count, mean = len(known), float(known.mean())
    spread = float(((known - mean) ** 2).sum())
    open_ = np.isin(op, [i for i, name in enumerate(names) if left[name] > 0])
    picked: list[Reason] = []
    for _ in range(sum(left.values())):
        uncertainty = joint_variance(f, count, mean, spread)
        total = np.where(open_, f * distance + uncertainty, -np.inf)
        best = int(total.argmax())
        name = names[op[best]]
        picked.append(
            Reason(
                int(rest[best]),
                name,
                round,
                float(distance[best]),
                float(uncertainty[best]),
                float(total[best]),
            )
        )
        open_[best] = False
        left[name] -= 1
        if left[name] == 0:
            open_[op == op[best]] = False
        count, step = count + 1, float(f[best]) - mean
        mean += step / count
        spread += step * (float(f[best]) - mean)
        np.minimum(distance, np.abs(f - f[best]), out=distance)
    return Selection(np.array([reason.index for reason in picked], dtype=np.int64), tuple(picked))
