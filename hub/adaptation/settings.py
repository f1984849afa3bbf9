"""What an adaptation is told, what it tells while it runs, and what its rounds come to."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...zoo.adapt.budget import Budget
from ...zoo.adapt.fine_tune import FineTuneConfig
from ...zoo.adapt.sampling import Reason, Sampler
from ...zoo.adapt.stopping import WORTH

if TYPE_CHECKING:
    from ...zoo.adapt.choose_method import AdaptedModel
    from ...zoo.adapt.stopping import CurvePoint, StopDecision
    from .judge import Judgement
    from .start import Start


@dataclass(frozen=True)
class AdaptSettings:
    """How an adaptation spends its budget.

    Attributes:
        budget: what may be measured.
        sampler: picks the programs to learn from.
        rounds: rounds of the sampler after the first batch, each followed by a model update; of a budget that stops
            itself the least.
        seed: of every random choice.
        fine_tune: how the model learns.
        method: of the last update, see `zoo.adapt.choose_method`; the rounds' own are few-shot, which takes seconds.
        worth: of a budget that stops itself, seconds of measuring that 1% of the network's latency is worth.
    """

    budget: Budget
    sampler: Sampler
    rounds: int = 3
    seed: int = 0
    fine_tune: FineTuneConfig = field(default_factory=FineTuneConfig)
    method: str = "few-shot"
    worth: float = WORTH


class AdaptProgress:
    """What a display may override; does nothing itself."""

    def start(self, phase: str, total: int) -> None:
        """A phase of so many steps begins."""

    def advance(self, failed: bool = False) -> None:
        """One step of it is done."""

    def note(self, text: str) -> None:
        """Something that is worth a line of its own: a source that was chosen, a point of the learning curve."""


@dataclass
class Clock:
    """Wall seconds by phase."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - began


@dataclass(frozen=True)
class Outcome:
    """What the rounds came to.

    Attributes:
        adapted: the model, and how it was made.
        start: what it was made from.
        reasons: of every program to learn from, in the order of picking.
        hold_out: places of the held-out programs.
        judgement: the comparison with the base.
        curve: of a budget that stops itself, a point a round; stop: its last decision.
    """

    adapted: AdaptedModel
    start: Start
    reasons: tuple[Reason, ...]
    hold_out: tuple[int, ...]
    judgement: Judgement
    curve: tuple[CurvePoint, ...] = ()
    stop: StopDecision | None = None
