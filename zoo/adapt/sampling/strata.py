"""`strata`, tchub's own: with few labels a task, slow and fast programs alike, by what the model expects."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from .budgets import task_budgets
from .protocol import Ask, Sampler, finite_scores
from .reason import Selection


class StrataSampler(Sampler):
    """Cuts each task's open programs, in the order of the model's scores, into as many parts as it gets labels.

    One program of each part is drawn, so that no part of the scale is without a label. Types and tasks share the
    budget as in `rdu+`. It asks for no label before, so that a model pretrained on other devices can choose the first
    batch; without a model the choice within a task is random. O(n log n).
    """

    name: ClassVar[str] = "strata"

    def pick(self, ask: Ask) -> Selection:
        rest, pool, view = ask.shuffled(), ask.pool, ask.view
        budgets = task_budgets(pool, ask.labeled, ask.k, ask.rng)
        if view is not None:
            rest = rest[np.argsort(finite_scores(view)[rest], kind="stable")]
        ordered = rest[np.argsort(pool.task[rest], kind="stable")]
        members = np.split(ordered, np.cumsum(pool.counts(rest))[:-1])
        picks = [
            [ask.rng.choice(part) for part in np.array_split(members[task], budgets[task])]
            for task in np.flatnonzero(budgets)
        ]
        return ask.picked(np.concatenate(picks).astype(np.int64))
