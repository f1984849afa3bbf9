"""The candidates that a sampler picks from, its picks with reasons, and the share of each operator type and task."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ...apportion import apportion_capped
from ..errors import AdaptError


@dataclass(frozen=True)
class Pool:
    """The candidate programs of the tasks in hand.

    Attributes:
        task: (N,) int64, the task of each program.
        ops: operator type of each task; `task` indexes it.
        task_features: (T, F) numbers that describe each task, where the caller knows some; see `fasor`.
        to_rank: True if these very tasks will be ranked, as those of a network to be tuned are; False if they stand
            for others, as the tasks of a corpus do.
    """

    task: np.ndarray
    ops: tuple[str, ...]
    task_features: np.ndarray | None = None
    to_rank: bool = False

    def __len__(self) -> int:
        return len(self.task)

    def op(self, index: int) -> str:
        """Return the operator type of a program."""
        return self.ops[int(self.task[index])]

    def free(self, labeled: Sequence[int] | np.ndarray, k: int) -> np.ndarray:
        """Return the indices of the programs without a label, ascending, (n,) int64.

        Raises:
            AdaptError: there is none, or `k` is below 1.
        """
        free = np.ones(len(self), dtype=bool)
        free[np.asarray(labeled, dtype=np.int64)] = False
        rest = np.flatnonzero(free)
        if len(rest) == 0 or k < 1:
            raise AdaptError(
                f"nothing to pick: {len(rest)} of {len(self)} candidates are unmeasured, {k} wanted",
                remedy="enlarge the pool (--per-task) or give a budget of at least one program",
            )
        return rest

    def counts(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return how many of the programs at `indices` each task has, (T,) int64."""
        return np.bincount(self.task[np.asarray(indices, dtype=np.int64)], minlength=len(self.ops))


@dataclass(frozen=True)
class Reason:
    """Why a program was picked.

    Attributes:
        index: of the program in the pool.
        op: operator type.
        round: the round that picked it.
        diversity, uncertainty: as the sampler defines them (of `rdu` d_s, equation 1, and u_s, equations 2 and 3);
            total: the value that it ranked the program by. NaN where it used none.
    """

    index: int
    op: str
    round: int
    diversity: float = math.nan
    uncertainty: float = math.nan
    total: float = math.nan

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form; unknown numbers are None."""
        return {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in asdict(self).items()}

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Reason:
        """Read the JSON form; KeyError, TypeError or ValueError where it is none."""
        known = {k: math.nan if row[k] is None else float(row[k]) for k in ("diversity", "uncertainty", "total")}
        return cls(int(row["index"]), str(row["op"]), int(row["round"]), **known)


@dataclass(frozen=True)
class Selection:
    """The picks of a sampler, in the order of picking.

    Attributes:
        indices: (k,) int64 of the pool, all different.
        reasons: one for each index.
    """

    indices: np.ndarray
    reasons: tuple[Reason, ...]

    @classmethod
    def of(cls, pool: Pool, indices: np.ndarray, round: int, **numbers: np.ndarray) -> Selection:
        """Make a selection of indices (k,) with `diversity`, `uncertainty` and `total` of each, where there are any."""
        columns = {name: values.tolist() for name, values in numbers.items()}
        reasons = tuple(
            Reason(index, pool.op(index), round, **{name: values[number] for name, values in columns.items()})
            for number, index in enumerate(indices.tolist())
        )
        return cls(indices.astype(np.int64), reasons)


def take_turns(task: np.ndarray, done: np.ndarray) -> np.ndarray:
    """Return the turn in which each program is picked if every task picks one a turn and has picked some before.

    Args:
        task: (n,) of programs, in the order in which a task picks its own.
        done: (T,) programs that each task has picked.

    Returns:
        (n,) int64; the k programs of the smallest turns make the tasks level. O(n log n).
    """
    by_task = np.argsort(task, kind="stable")
    tasks, starts, sizes = np.unique(task[by_task], return_index=True, return_counts=True)
    turn = np.empty(len(task), dtype=np.int64)
    turn[by_task] = np.arange(len(task)) - np.repeat(starts - done[tasks], sizes)
    return turn


def task_budgets(
    pool: Pool, labeled: Sequence[int] | np.ndarray, k: int, rng: np.random.Generator, block: int = 1
) -> np.ndarray:
    """Return how many programs of each task may be picked now, (T,) int64: types by `op_budgets`, a type's tasks level.

    Which task the last unit of a type reaches is drawn.

    Args:
        block: labels of a task that belong together: the tasks are level in blocks of so many, and a block that was
            begun is filled, those with the most labels first, before another one is.
    """
    rest = rng.permutation(pool.free(labeled, k))
    left = op_budgets(pool, labeled, min(k, len(rest)))
    number = {name: i for i, name in enumerate(left)}
    op_of_task = np.array([number.get(op, -1) for op in pool.ops])
    done = pool.counts(labeled)
    task, turn = pool.task[rest], take_turns(pool.task[rest], done)
    _, first, same = np.unique(turn // block * len(done) + task, return_index=True, return_inverse=True)
    rest = rest[np.lexsort((first[same], -(done % block)[task], turn // block))]
    op = op_of_task[pool.task[rest]]
    allowed = np.array(list(left.values()))
    return pool.counts(rest[take_turns(op, np.zeros(len(left), dtype=np.int64)) < allowed[op]])


def op_budgets(pool: Pool, labeled: Sequence[int] | np.ndarray, k: int) -> dict[str, int]:
    """Return how many programs of each operator type may be picked now; they sum to `k` (TCL, algorithm 1, 18 to 21).

    The share of a type is that of its tasks (the paper's assignments) among the tasks of the pool, by largest
    remainders over all that was and will be picked; what a type cannot fill goes to the others.
    """
    weights = Counter(pool.ops[task] for task in np.unique(pool.task).tolist())
    target = apportion_capped(len(labeled) + k, weights, _count_by_op(pool, np.arange(len(pool))))
    done = _count_by_op(pool, labeled)
    need = {op: max(0, target[op] - done.get(op, 0)) for op in weights}
    return apportion_capped(k, need, need)


def _count_by_op(pool: Pool, indices: Sequence[int] | np.ndarray) -> dict[str, int]:
    by_op = dict.fromkeys(pool.ops, 0)
    for op, count in zip(pool.ops, pool.counts(indices).tolist(), strict=True):
        by_op[op] += count
    return by_op
