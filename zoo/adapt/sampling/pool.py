"""The candidates: the pool, picks with reasons, shares of operator types and tasks, and the hold-out."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...apportion import apportion
from ..errors import AdaptError

# Programs of a task in the hold-out: four give six pairs, and fewer would judge a task by a coin toss.
PROGRAMS_PER_TASK = 4


@dataclass(frozen=True)
class Pool:
    """The candidate programs of the tasks in hand.

    Attributes:
        task: (N,) int64, the task of each program.
        ops: operator type of each task; `task` indexes it.
        to_rank: True for tasks of a network to be tuned, False for tasks that stand for others, as a corpus's do.
    """

    task: np.ndarray
    ops: tuple[str, ...]
    to_rank: bool = False

    def __len__(self) -> int:
        return len(self.task)

    def op(self, index: int) -> str:
        """Return the operator type of a program."""
        return self.ops[int(self.task[index])]

    def free(self, labeled: Sequence[int] | np.ndarray, k: int) -> np.ndarray:
        """Return the indices of the programs without a label, ascending; AdaptError if there is none or `k` < 1."""
        free = np.ones(len(self), dtype=bool)
        free[np.asarray(labeled, dtype=np.int64)] = False
        rest = np.flatnonzero(free)
        if len(rest) == 0 or k < 1:
            raise AdaptError(
                f"nothing to pick: {len(rest)} of {len(self)} candidates are unmeasured, {k} wanted",
                remedy="enlarge the pool (--per-task) or give a budget of at least one program",
            )
        return rest

    def by_task(self, indices: np.ndarray) -> list[np.ndarray]:
        """Return the programs at `indices` of each task, in the order given; one array for each of the T tasks."""
        ordered = indices[np.argsort(self.task[indices], kind="stable")]
        return np.split(ordered, np.cumsum(self.counts(indices))[:-1])

    def counts(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return how many of the programs at `indices` each task has, (T,) int64."""
        return np.bincount(self.task[np.asarray(indices, dtype=np.int64)], minlength=len(self.ops))


@dataclass(frozen=True)
class Reason:
    """Why a program was picked in a round.

    `diversity` and `uncertainty` are as the sampler defines them (of `rdu` d_s, equation 1, and u_s, equations 2 and
    3), `total` is the value that it ranked the program by; None where it used none.
    """

    index: int
    op: str
    round: int
    diversity: float | None = None
    uncertainty: float | None = None
    total: float | None = None


@dataclass(frozen=True)
class Selection:
    """The picks of a sampler in the order of picking: indices of the pool, (k,) int64, and their reasons."""

    indices: np.ndarray
    reasons: tuple[Reason, ...]


def take_turns(task: np.ndarray, done: np.ndarray) -> np.ndarray:
    """Return the turn (n,) in which each program is picked if every task picks one a turn and has picked `done` (T,).

    `task` (n,) is in the order in which a task picks its own.
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
    target = apportion(len(labeled) + k, weights, _count_by_op(pool, np.arange(len(pool))))
    done = _count_by_op(pool, labeled)
    need = {op: max(0, target[op] - done.get(op, 0)) for op in weights}
    return apportion(k, need, need)


def _count_by_op(pool: Pool, indices: Sequence[int] | np.ndarray) -> dict[str, int]:
    by_op = dict.fromkeys(pool.ops, 0)
    for op, count in zip(pool.ops, pool.counts(indices).tolist(), strict=True):
        by_op[op] += count
    return by_op


def choose_holdout(pool: Pool, count: int, rng: np.random.Generator, learnt: int = 0) -> np.ndarray:
    """Pick at most `count` hold-out programs at random, level over tasks: (k,) int64 of the pool, sorted by task.

    A task has `PROGRAMS_PER_TASK` at least; of too many tasks a random choice is held out. `learnt` candidates, which
    the base knows, are not in the pool.

    Raises:
        AdaptError: `count` does not reach for one task, or no task has programs enough.
    """
    per_task, members = PROGRAMS_PER_TASK, [np.flatnonzero(pool.task == task) for task in np.unique(pool.task)]
    # Half of a task at most: a small task must keep something to learn from.
    members = [m for m in members if len(m) // 2 >= per_task]
    if count < per_task:
        raise AdaptError(
            f"a hold-out of {count} programs cannot judge any of {len(pool.ops)} tasks",
            remedy=f"give a budget that holds out {per_task} programs",
            holdout=count,
        )
    if not members:
        known = f"{learnt} of {len(pool) + learnt} candidates were learnt before, and " if learnt else ""
        other = ", take other candidates with --seed, or adapt the checkpoint that this one was made from"
        raise AdaptError(
            f"no hold-out can judge: {known}none of {len(pool.ops)} tasks has {2 * per_task} candidates besides",
            remedy=f"enlarge the pool with --per-task{other if learnt else ''}",
            holdout=count,
        )
    chosen = rng.permutation(len(members))[: max(1, count // per_task)]
    share, extra = divmod(count, len(chosen))
    picks = [
        rng.permutation(members[task])[: min(share + (number < extra), len(members[task]) // 2)]
        for number, task in enumerate(chosen)
    ]
    return np.concatenate([picks[i] for i in np.argsort(chosen)]).astype(np.int64)
