"""The rivals of paper TCL's table 4: ALT (uncertainty) and BALTO (uncertainty and biased diversity)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from .pool import Selection
from .sampler import CHUNK, RandomSampler, Sampler, SamplingRequest, chunks, finite_scores, normalise

# Labeled programs that stand for all.
_ANCHORS = 2048


class ALTSampler(Sampler):
    """The k programs of which the model is least sure (ALT, as section 7.3.2 of paper TCL has it).

    How uncertainty is measured the paper leaves open; here by the posterior of the last layer. Without labels the
    choice is random.
    """

    name: ClassVar[str] = "alt"

    def pick(self, request: SamplingRequest) -> Selection:
        """O(n log n) once the uncertainties are known; ties are broken at random."""
        rest, predictions = request.shuffled(), request.informed()
        if predictions is None:
            return RandomSampler().pick(request)
        finite_scores(predictions)
        unsure = predictions.uncertainty()[rest]
        best = np.argsort(-unsure, kind="stable")[: request.k]
        return request.picked(rest[best], uncertainty=unsure[best], total=unsure[best])


class BALTOSampler(Sampler):
    """Uncertainty, and a diversity that favours fast programs (BALTO, as section 7.3.2 of paper TCL has it).

    The paper leaves open how. Here: greedily the largest u(x) + f(x) d(x), where u is the uncertainty, d the distance
    of the embedding to the nearest labeled or picked program, both over their largest, and f the score in [0, 1].
    """

    name: ClassVar[str] = "balto"

    def pick(self, request: SamplingRequest) -> Selection:
        rest, predictions = request.shuffled(), request.informed()
        if predictions is None:
            return RandomSampler().pick(request)
        f = normalise(finite_scores(predictions))[rest]
        unsure = predictions.uncertainty()[rest]
        unsure = unsure / max(float(unsure.max()), np.finfo(float).tiny)
        points, anchors = predictions.last_layer.inputs, request.labeled
        if len(anchors) > _ANCHORS:
            anchors = request.rng.choice(anchors, size=_ANCHORS, replace=False)
        distance = _nearest(points[rest], points[anchors])
        scale = max(float(distance.max()), np.finfo(float).tiny)
        rows = []
        for part, (share,) in chunks(np.zeros(len(rest), np.int64), np.array([min(request.k, len(rest))])):
            rows.append(_spread(points[rest[part]], distance[part], scale, unsure[part], f[part], share))
            rows[-1][0] += part.start
        index, far, doubt, total = np.concatenate(rows, axis=1)
        return request.picked(rest[index.astype(int)], diversity=far, uncertainty=doubt, total=total)


def _nearest(points: np.ndarray, anchors: np.ndarray) -> np.ndarray:
    """(n,) distance of each point (n, d) to the nearest anchor (m, d), in blocks that bound the memory. O(n m d)."""
    distances = np.empty(len(points))
    norms = (anchors**2).sum(axis=1)
    for start in range(0, len(points), CHUNK):
        block = points[start : start + CHUNK]
        squares = (block**2).sum(axis=1)[:, None] + norms - 2 * block @ anchors.T
        distances[start : start + CHUNK] = np.sqrt(np.maximum(squares.min(axis=1), 0))
    return distances


def _spread(
    points: np.ndarray, distance: np.ndarray, scale: float, unsure: np.ndarray, f: np.ndarray, k: int
) -> np.ndarray:
    """Greedy picks of one chunk: (4, k) of index, distance over `scale`, uncertainty and total of each."""
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
