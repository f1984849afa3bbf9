"""Programs that are measured to judge an adaptation, and never learnt from."""

from __future__ import annotations

import numpy as np

from .errors import AdaptError
from .sampling import Pool

# Four programs of a task give six pairs; fewer would judge a task by a coin toss.
PROGRAMS_PER_TASK = 4


def choose_holdout(
    pool: Pool, count: int, rng: np.random.Generator, per_task: int = PROGRAMS_PER_TASK, learnt: int = 0
) -> np.ndarray:
    """Pick hold-out programs at random, spread over tasks.

    A sampler's picks are chosen for what the model thinks of them, so an estimate on them would be biased:
    the hold-out is uniform within a task. Each task gets the same number, at least `per_task`; when the count
    does not reach for all tasks, a random choice of tasks is held out.

    Args:
        pool: the candidates.
        count: programs to hold out.
        rng: source of randomness.
        per_task: least programs of a task that is used.
        learnt: candidates that are not in the pool, since the base has learnt them; for the error message.

    Returns:
        At most `count` indices of the pool, (k,) int64, sorted by task.

    Raises:
        AdaptError: `count` does not reach for one task, or no task has programs enough.
    """
    members = [np.flatnonzero(pool.task == task) for task in np.unique(pool.task)]
    # Half of a task at most: a small task must keep something to learn from.
    members = [m for m in members if len(m) // 2 >= per_task]
    if count < per_task:
        raise AdaptError(
            f"a hold-out of {count} programs cannot judge any of {len(pool.ops)} tasks",
            remedy=f"give a budget that holds out {per_task} programs",
            holdout=count,
        )
    if not members:
        left, remedy = f"none of {len(pool.ops)} tasks has {2 * per_task} candidates", "enlarge the pool with --per-task"
        if learnt:
            left = f"{learnt} of {len(pool) + learnt} candidates were learnt before, and {left} besides"
            remedy += ", take other candidates with --seed, or adapt the checkpoint that this one was made from"
        raise AdaptError(f"no hold-out can judge: {left}", remedy=remedy, holdout=count)
    chosen = rng.permutation(len(members))[: max(1, count // per_task)]
    share, extra = divmod(count, len(chosen))
    picks = [
        rng.permutation(members[task])[: min(share + (number < extra), len(members[task]) // 2)]
        for number, task in enumerate(chosen)
    ]
    return np.concatenate([picks[i] for i in np.argsort(chosen)]).astype(np.int64)
