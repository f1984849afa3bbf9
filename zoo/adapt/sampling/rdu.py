"""RDU: representativeness, diversity, uncertainty (paper TCL, section 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ..view import ModelView
from .budgets import op_budgets
from .plain import RandomSampler
from .pool import Pool
from .protocol import finite_scores, normalise
from .rdu_greedy import greedy
from .reason import Selection


class RDUSampler:
    """Representativeness, diversity, uncertainty: algorithm 1 and equations 1 to 3 of paper TCL.

    Representative: operator types share the budget as they share the tasks of the pool, counted over all
    rounds, so that a type too rare for one round gets its programs in a later one. Within its type's budget,
    a program is picked for t_s = f(x) d_s(x) + u_s(x); each pick joins the labeled set before the next
    (line 30). The first call, without a model or labels, is Rand_Select of line 16.

    The model's scores are scaled to [0, 1] over the pool. Ties are broken at random.
    """

    name: ClassVar[str] = "rdu"

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
        """See `Sampler.select`. O(n log n), and about O(log n) a pick."""
        rest = rng.permutation(pool.free(labeled, k))
        if view is None or len(labeled) == 0:
            return RandomSampler().select(pool, labeled, k, None, rng, round=round)
        f = normalise(finite_scores(view))
        left = op_budgets(pool, labeled, min(k, len(rest)))
        op = np.array([list(left).index(o) if o in left else -1 for o in pool.ops])[pool.task[rest]]
        picks = greedy(f[rest], op, np.array(list(left.values())), f[np.asarray(labeled, dtype=np.int64)])
        return Selection.of(
            pool,
            rest[picks.place],
            round,
            diversity=picks.diversity,
            uncertainty=picks.uncertainty,
            total=picks.total,
        )
