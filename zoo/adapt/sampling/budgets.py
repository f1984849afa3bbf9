"""How a budget is divided: over operator types as algorithm 1 of paper TCL has it, and over tasks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...apportion import apportion_capped
from .pool import Pool


def take_turns(task: np.ndarray, done: np.ndarray) -> np.ndarray:
    """In which turn each program is picked if every task picks one a turn and has picked some before.

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
    """Programs of each task that may be picked now, (T,) int64: types by `op_budgets`, a type's tasks level.

    Whom the last unit of a type reaches is drawn.

    Args:
        block: labels of a task that belong together: the tasks are level in blocks of so many, and a block that was
            begun is filled, those with the most labels first, before another one is.
    """
    rest = rng.permutation(pool.free(labeled, k))
    left = op_budgets(pool, labeled, min(k, len(rest)))
    names = {name: place for place, name in enumerate(left)}
    op_of_task = np.array([names.get(op, -1) for op in pool.ops])
    done = pool.counts(labeled)
    task, turn = pool.task[rest], take_turns(pool.task[rest], done)
    _, first, same = np.unique(turn // block * len(done) + task, return_index=True, return_inverse=True)
    rest = rest[np.lexsort((first[same], -(done % block)[task], turn // block))]
    op = op_of_task[pool.task[rest]]
    place = take_turns(op, np.zeros(len(left), dtype=np.int64))
    allowed = np.array(list(left.values()))
    return pool.counts(rest[place < allowed[op]])


def op_budgets(pool: Pool, labeled: Sequence[int] | np.ndarray, k: int) -> dict[str, int]:
    """Programs of each operator type that may be picked now (lines 18 to 21 of algorithm 1); they sum to `k`.

    The share of a type is that of its tasks among the tasks of the pool, by largest remainders over all that
    was and will be picked; what a type cannot fill goes to the others.
    """
    weights = pool.op_distribution()
    caps = _count_by_op(pool, np.arange(len(pool)))
    done = _count_by_op(pool, labeled)
    target = apportion_capped(len(labeled) + k, weights, caps)
    need = {op: max(0, target[op] - done.get(op, 0)) for op in weights}
    return apportion_capped(k, need, need)


def _count_by_op(pool: Pool, indices: Sequence[int] | np.ndarray) -> dict[str, int]:
    by_op: dict[str, int] = dict.fromkeys(pool.ops, 0)
    for op, count in zip(pool.ops, pool.counts(indices).tolist(), strict=True):
        by_op[op] += count
    return by_op
