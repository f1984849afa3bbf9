"""RDU: representativeness, diversity, uncertainty (paper TCL, section 4)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from .budgets import op_budgets
from .plain import RandomSampler
from .protocol import Ask, Sampler, finite_scores, normalise
from .rdu_greedy import greedy
from .reason import Selection


class RDUSampler(Sampler):
    """Representativeness, diversity, uncertainty: algorithm 1 and equations 1 to 3 of paper TCL.

    Representative: operator types share the budget as they share the tasks of the pool, counted over all
    rounds, so that a type too rare for one round gets its programs in a later one. Within its type's budget,
    a program is picked for t_s = f(x) d_s(x) + u_s(x); each pick joins the labeled set before the next
    (line 30). The first call, without a model or labels, is Rand_Select of line 16.

    The model's scores are scaled to [0, 1] over the pool. Ties are broken at random.
    """

    name: ClassVar[str] = "rdu"

    def pick(self, ask: Ask) -> Selection:
        """O(n log n), and about O(log n) a pick."""
        rest, view = ask.shuffled(), ask.informed()
        if view is None:
            return RandomSampler().pick(ask)
        f = normalise(finite_scores(view))
        left = op_budgets(ask.pool, ask.labeled, min(ask.k, len(rest)))
        op = np.array([list(left).index(o) if o in left else -1 for o in ask.pool.ops])[ask.pool.task[rest]]
        picks = greedy(f[rest], op, np.array(list(left.values())), f[ask.labeled])
        return ask.picked(
            rest[picks.place], diversity=picks.diversity, uncertainty=picks.uncertainty, total=picks.total
        )
