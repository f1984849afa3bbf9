"""The rivals of paper TCL's table 4: ALT (uncertainty) and BALTO (uncertainty and biased diversity)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from .distances import MAX_ANCHORS, nearest, some_of
from .plain import RandomSampler
from .protocol import Ask, Sampler, finite_scores, normalise
from .reason import Selection

# Programs among which BALTO's greedy looks at all pairs.
_CHUNK = 4096


class ALTSampler(Sampler):
    """The programs of which the model is least sure, nothing else (ALT, as section 7.3.2 of paper TCL has it).

    Paper TCL says that ALT brought active learning to compilers and calls its criterion uncertainty; by what
    it is measured it leaves open. Here: the posterior of the last layer, `ModelView.uncertainty`. A batch is the
    k most uncertain programs, however alike. Without a model or labels the choice is random.
    """

    name: ClassVar[str] = "alt"

    def pick(self, ask: Ask) -> Selection:
        """O(n log n) once the uncertainties are known; ties are broken at random."""
        rest, view = ask.shuffled(), ask.informed()
        if view is None:
            return RandomSampler().pick(ask)
        finite_scores(view)
        unsure = view.uncertainty()[rest]
        best = np.argsort(-unsure, kind="stable")[: ask.k]
        return ask.picked(rest[best], uncertainty=unsure[best], total=unsure[best])


class BALTOSampler(Sampler):
    """Uncertainty, and a diversity that favours fast programs (BALTO, as section 7.3.2 of paper TCL has it).

    Paper TCL tells that BALTO adds biased diversity to ALT, not how. Here: greedily the largest
    u(x) + f(x) d(x), where u is `ModelView.uncertainty` and d the distance of the embedding to the nearest
    labeled or picked program (greedy k-center, core-set), both over their largest, and f the score in [0, 1]
    over the pool: of two programs as far away, the faster one.

    All pairs are looked at within chunks of 4,096 programs drawn at random, each with its share of the budget,
    and at most 2,048 labeled programs stand for all: O(n (c k / n + m) d) for chunks of c and m labeled ones.
    """

    name: ClassVar[str] = "balto"

    def pick(self, ask: Ask) -> Selection:
        rest, view = ask.shuffled(), ask.informed()
        if view is None:
            return RandomSampler().pick(ask)
        f = normalise(finite_scores(view))[rest]
        unsure = view.uncertainty()[rest]
        unsure = unsure / max(float(unsure.max()), np.finfo(float).tiny)
        points = view.last_layer.inputs
        anchors = points[some_of(ask.labeled, MAX_ANCHORS, ask.rng)]
        points = points[rest]
        distance = nearest(points, anchors)
        scale = max(float(distance.max()), np.finfo(float).tiny)
        cuts = np.linspace(0, len(rest), -(-len(rest) // _CHUNK) + 1).astype(int)
        shares = np.diff(cuts * min(ask.k, len(rest)) // len(rest))  # of no chunk more than it has
        rows = [
            part + np.array([[start], [0], [0], [0]])
            for start, end, share in zip(cuts[:-1], cuts[1:], shares, strict=True)
            for part in [_spread(points[start:end], distance[start:end], scale, unsure[start:end], f[start:end], share)]
        ]
        place, far, doubt, total = np.concatenate(rows, axis=1)
        return ask.picked(rest[place.astype(int)], diversity=far, uncertainty=doubt, total=total)


def _spread(
    points: np.ndarray, distance: np.ndarray, scale: float, unsure: np.ndarray, f: np.ndarray, k: int
) -> np.ndarray:
    """Greedy picks of one chunk: (4, k) of place, distance over `scale`, uncertainty and total of each."""
    distance, open_ = distance.copy(), np.zeros(len(points))
    norms = (points**2).sum(axis=1)
    rows = np.empty((4, k))
    for number in range(k):
        total = unsure + f * distance / scale + open_
        best = int(total.argmax())
        rows[:, number] = best, distance[best] / scale, unsure[best], total[best]
        open_[best] = -np.inf
        squares = norms + norms[best] - 2 * (points @ points[best])
        np.minimum(distance, np.sqrt(np.maximum(squares, 0)), out=distance)
    return rows
