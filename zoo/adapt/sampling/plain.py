"""Samplers that ask no model: uniform, and level over the tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ..view import ModelView
from .budgets import take_turns
from .pool import Pool
from .reason import Selection


class RandomSampler:
    """Uniform choice without replacement."""

    name: ClassVar[str] = "random"

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
        """See `Sampler.select`; `view` is not used. O(n)."""
        rest = pool.free(labeled, k)
        return Selection.of(pool, rng.choice(rest, size=min(k, len(rest)), replace=False), round)


class StratifiedSampler:
    """Random choice that gives every task the same number of programs, those labeled before counted in."""

    name: ClassVar[str] = "stratified"

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
        """See `Sampler.select`; `view` is not used. O(n log n)."""
        rest = rng.permutation(pool.free(labeled, k))
        turn = take_turns(pool.task[rest], pool.counts(labeled))
        return Selection.of(pool, rest[np.argsort(turn, kind="stable")][:k], round)
