"""`Sampler`: the one interface of all samplers, and what they do before there is a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..errors import SamplingError
from ..view import ModelView
from .pool import Pool
from .reason import Selection


@dataclass(frozen=True)
class Ask:
    """What a sampler is asked; the fields are the arguments of `Sampler.select`."""

    pool: Pool
    labeled: np.ndarray
    k: int
    view: ModelView | None
    rng: np.random.Generator
    round: int

    def free(self) -> np.ndarray:
        """Places of the programs without a label, ascending, (n,) int64; SamplingError where nothing can be picked."""
        return self.pool.free(self.labeled, self.k)

    def shuffled(self) -> np.ndarray:
        """The same in random order, so that ties are broken at random."""
        return self.rng.permutation(self.free())

    def informed(self) -> ModelView | None:
        """The model's view, where it has labels to be informed by."""
        return self.view if len(self.labeled) else None

    def picked(self, indices: np.ndarray, **numbers: np.ndarray) -> Selection:
        """The answer, see `Selection.of`."""
        return Selection.of(self.pool, indices, self.round, **numbers)


class Sampler(ABC):
    """Chooses unlabeled programs of a pool to measure next; a sampler is a `name` and `pick`."""

    name: ClassVar[str]

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
        """Pick `k` programs that are not in `labeled` (fewer when fewer are left).

        Args:
            pool: all candidates, labeled ones included.
            labeled: (m,) places in the pool that need no label any more.
            k: how many to pick, >= 1.
            view: what the model says of the pool; None before there is a model.
            rng: source of randomness; the same state gives the same picks.
            round: number of the round, for the reasons.

        Raises:
            SamplingError: nothing is left to pick, or the model's scores are not finite.
        """
        return self.pick(Ask(pool, np.asarray(labeled, dtype=np.int64), k, view, rng, round))

    @abstractmethod
    def pick(self, ask: Ask) -> Selection:
        """What `select` returns."""


def finite_scores(view: ModelView) -> np.ndarray:
    """(N,) the model's scores.

    Raises:
        SamplingError: a score is NaN or infinite.
    """
    scores = np.asarray(view.scores, dtype=np.float64)
    wrong = int((~np.isfinite(scores)).sum())
    if wrong:
        raise SamplingError(
            f"{wrong} of {len(scores)} predictions are not finite",
            remedy="the model has diverged: lower the learning rate or start from the published checkpoint",
        )
    return scores


def normalise(scores: np.ndarray) -> np.ndarray:
    """Scale finite scores to [0, 1] over the pool; equal scores become 0."""
    f = np.asarray(scores, dtype=np.float64)
    span = np.ptp(f) if len(f) else 0.0
    return (f - f.min()) / span if span > 0 else np.zeros_like(f)
