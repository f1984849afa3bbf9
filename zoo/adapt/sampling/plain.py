"""Samplers that ask no model: uniform, and level over the tasks."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from .budgets import take_turns
from .protocol import Ask, Sampler
from .reason import Selection


class RandomSampler(Sampler):
    """Uniform choice without replacement."""

    name: ClassVar[str] = "random"

    def pick(self, ask: Ask) -> Selection:
        """O(n)."""
        rest = ask.free()
        return ask.picked(ask.rng.choice(rest, size=min(ask.k, len(rest)), replace=False))


class StratifiedSampler(Sampler):
    """Random choice that gives every task the same number of programs, those labeled before counted in."""

    name: ClassVar[str] = "stratified"

    def pick(self, ask: Ask) -> Selection:
        """O(n log n)."""
        rest = ask.shuffled()
        turn = take_turns(ask.pool.task[rest], ask.pool.counts(ask.labeled))
        return ask.picked(rest[np.argsort(turn, kind="stable")][: ask.k])
