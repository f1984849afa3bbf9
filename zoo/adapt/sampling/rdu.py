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
