"""ALT and BALTO, with which paper TCL compares RDU (section 7.3.2); it leaves open how both measure uncertainty."""

from __future__ import annotations

from typing import Any

import numpy as np
from tchub.zoo.adapt.sampling import SAMPLERS, RandomSampler, Sampler
from tchub.zoo.adapt.sampling.rdu import chunks, finite_scores, normalise


def make_sampler(name: str) -> Sampler:
    """Make one of the samplers that are compared."""
    return (SAMPLERS | {"alt": ALTSampler, "balto": BALTOSampler})[name]()


class ALTSampler(Sampler):
    """The k programs of which the model is least sure."""

    name = "alt"

    def pick(self, request: Any) -> Any:
        rest, predictions = request.shuffled(), request.informed()
        if predictions is None:
            return RandomSampler().pick(request)
        return request.picked(rest[np.argsort(-predictions.uncertainty()[rest], kind="stable")[: request.k]])


class BALTOSampler(Sampler):
    """Greedily the largest u + f d: uncertainty, distance to what is known, and score, each in [0, 1]."""

    name = "balto"

    def pick(self, request: Any) -> Any:
        rest, predictions = request.shuffled(), request.informed()
        if predictions is None:
            return RandomSampler().pick(request)
        f, unsure = normalise(finite_scores(predictions))[rest], predictions.uncertainty()[rest]
        unsure, points, anchors = unsure / unsure.max(), predictions.last_layer.inputs, request.labeled
        if len(anchors) > 2048:
            anchors = request.rng.choice(anchors, size=2048, replace=False)
        parts = np.array_split(rest, len(rest) // 4096 + 1)
        near = np.concatenate([np.sqrt(_squares(points[part], points[anchors]).min(axis=1)) for part in parts])
        picks, scale = [], near.max()
        for part, (share,) in chunks(np.zeros(len(rest), np.int64), np.array([min(request.k, len(rest))])):
            own, distance, taken = points[rest[part]], near[part].copy(), np.zeros(part.stop - part.start)
            for _ in range(share):
                best = int((unsure[part] + f[part] * distance / scale + taken).argmax())
                picks.append(rest[part.start + best])
                taken[best] = -np.inf
                np.minimum(distance, np.sqrt(_squares(own, own[[best]])[:, 0]), out=distance)
        return request.picked(np.array(picks))


def _squares(points: np.ndarray, anchors: np.ndarray) -> np.ndarray:
    """Squared distances, (n, m)."""
    return np.maximum((points**2).sum(axis=1)[:, None] + (anchors**2).sum(axis=1) - 2 * points @ anchors.T, 0)
