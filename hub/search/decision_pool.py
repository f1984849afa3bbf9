"""Programs that a search in decision space looks at in one round, and the order in which they are taken."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import numpy as np

from .design_space import Decisions

Key = tuple[int, Decisions]
"""A program of a task: the number of its design space, and its decisions."""


@dataclass(frozen=True)
class DecisionSettings:
    """Search in decision space.

    Attributes:
        random: programs drawn at random a round.
        generations: how often the best are varied; 0: the random programs and the measured ones' neighbours only.
        blind: the same before anything of the task was measured: bred for longer against a model that nothing has
            corrected yet, programs are what it is wrong about.
        children: programs of each generation, and neighbours of measured programs.
        parents: best programs that children descend from; of measured ones, a quarter as many.
        mutations: share of children that are mutants of one parent; the others are mutants of a cross of two parents
            of one design space.
        epsilon: share of a batch that is drawn at random.
        apart: least distance of two programs of a batch, as a share of the median distance between random programs.
        attempts: programs replayed at most for each one asked for.
    """

    random: int = 1024
    generations: int = 4
    blind: int = 2
    children: int = 512
    parents: int = 64
    mutations: float = 0.8
    epsilon: float = 0.05
    apart: float = 0.4
    attempts: int = 24


@dataclass
class Pool:
    """Programs of one round with what the checkpoint reads of them and says about them."""

    keys: list[Key]
    features: np.ndarray
    scores: np.ndarray

    def __add__(self, other: Pool) -> Pool:
        if not self.keys or not other.keys:
            return self if self.keys else other
        features = np.concatenate([self.features, other.features])
        return Pool(self.keys + other.keys, features, np.concatenate([self.scores, other.scores]))


def spread_out(pool: Pool, share: float, rng: Random) -> Iterator[int]:
    """Places of programs best first, those too near to an earlier one left out; these follow when nothing else is left.

    Args:
        share: least distance, as a share of the median distance between random programs of the pool.
    """
    if not pool.keys:
        return
    flat = pool.features.reshape(len(pool.keys), -1).astype(np.float64)
    spread = flat.std(axis=0)
    points = flat[:, spread > 0] / spread[spread > 0]
    pairs = [rng.sample(range(len(points)), 2) for _ in range(64)] if len(points) > 1 else []
    median = float(np.median([np.linalg.norm(points[a] - points[b]) for a, b in pairs])) if pairs else 0.0
    taken: list[int] = []
    near: list[int] = []
    for i in map(int, np.argsort(-pool.scores, kind="stable")):
        if taken and np.linalg.norm(points[taken] - points[i], axis=1).min() <= share * median:
            near.append(i)
            continue
        taken.append(i)
        yield i
    yield from near
