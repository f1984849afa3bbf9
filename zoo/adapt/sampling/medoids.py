"""`medoids`, tchub's own: with few labels a task, programs that stand for the others of their task."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from scipy.cluster.vq import kmeans2

from ..view import ModelView
from .budgets import task_budgets
from .distances import nearest
from .pool import Pool
from .protocol import finite_scores
from .reason import Selection

# Among so many programs of a task the groups are found: what more of them would add is little, and k-means is
# programs times groups.
_CHUNK = 2048
_ITERATIONS = 10


class MedoidSampler:
    """Groups the programs of each task by what the model sees in them, and picks the middle one of each group.

    Types and tasks share the budget as in `rdu+`. The groups are those of k-means on `ModelView.embeddings`, as many
    as the task's labels, old and new; a group that holds a labelled program needs no other. It asks nothing of the
    scores, so a model that has not seen the device yet is as good a judge of which programs differ.

    For a first batch of a few labels a task. TileNet pretrained on other devices and fine-tuned, four labels of each
    validation task, mean of three draws, pairwise accuracy and mean top-1: K80 0.811 and 0.652 with random labels,
    0.834 and 0.774 with medoids; MI50 0.801 and 0.648, 0.843 and 0.873; RTX 3080 (AutoTVM) 0.886 and 0.602, 0.885
    and 0.494. With eight the difference is gone (0.862 and 0.868, 0.862 and 0.861).

    Without a model the choice within a task is random. O(n log n), and in each task picks times programs,
    of which 2,048 or as many as are picked take part.
    """

    name: ClassVar[str] = "medoids"

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
        if view is not None:
            finite_scores(view)
        seen = None if view is None else view.embeddings()
        open_, known = _by_task(pool, rest), _by_task(pool, np.asarray(labeled, dtype=np.int64))
        picks = []
        for task in np.flatnonzero(budgets):
            members, share = open_[task], int(budgets[task])
            if seen is not None and share < len(members):
                members = members[: max(_CHUNK, share)]
                members = members[medoids(seen[members], seen[known[task]], share, rng)]
            picks.append(members[:share])
        return Selection.of(pool, np.concatenate(picks), round)


def _by_task(pool: Pool, indices: np.ndarray) -> list[np.ndarray]:
    """Places in the pool of each task, in the order given."""
    ordered = indices[np.argsort(pool.task[indices], kind="stable")]
    return np.split(ordered, np.cumsum(pool.counts(indices))[:-1])


def medoids(points: np.ndarray, known: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Points in the middle of the groups that hold no known point, the largest group first.

    Where that gives too few, the points furthest from all that is known or picked follow.

    Args:
        points: (n, d) to pick from; known: (m, d).
        count: of picks, at most n.
        rng: source of randomness.

    Returns:
        (count,) int64 places among the points, all different.
    """
    every = np.concatenate([points, known]).astype(np.float64)
    groups = min(len(np.unique(every, axis=0)), count + len(known))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of a group that came out empty: it gives no pick
        centers, group = kmeans2(every, groups, iter=_ITERATIONS, minit="++", rng=rng)
    sizes, settled = np.bincount(group, minlength=groups), set(group[len(points) :].tolist())
    own, taken = group[: len(points)], []
    for number in np.argsort(-sizes, kind="stable").tolist():
        inside = np.flatnonzero(own == number)
        if number not in settled and len(inside):
            taken.append(int(inside[((points[inside] - centers[number]) ** 2).sum(axis=1).argmin()]))
    taken = taken[:count]
    far = nearest(every[: len(points)], np.concatenate([every[len(points) :], every[taken]]))
    while len(taken) < count:
        far[taken] = -np.inf
        taken.append(int(far.argmax()))
        far = np.minimum(far, nearest(every[: len(points)], every[taken[-1:]]))
    return np.array(taken, dtype=np.int64)
