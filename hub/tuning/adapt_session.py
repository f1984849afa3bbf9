"""The rounds of an adaptation: hold out, pick, measure, fine-tune, and at the end compare."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from ...zoo.adapt.budget import Budget
from ...zoo.adapt.errors import BudgetError, LabelError
from ...zoo.adapt.fine_tune import FineTuneConfig, fine_tune
from ...zoo.adapt.guard import GuardResult, compare
from ...zoo.adapt.holdout import PROGRAMS_PER_TASK, choose_holdout
from ...zoo.adapt.sampling import Pool, RandomSampler, Reason, Sampler, StratifiedSampler
from ...zoo.training import RankingDataset, evaluate_scores
from .adapt_measure import PoolMeasuring
from .adapt_pool import CandidatePool

if TYPE_CHECKING:
    from ...zoo.models import Checkpoint, CostModel

HOLD_OUT_SHARE = 0.2
# Four programs to judge by, and two for each of the four batches of the default three rounds.
MIN_PROGRAMS = 12
# Programs that tell what one costs, before a budget of time can be divided.
PROBE_PROGRAMS = 8


@dataclass(frozen=True)
class AdaptSettings:
    """How an adaptation spends its budget.

    Attributes:
        budget: what may be measured.
        sampler: picks the programs to learn from.
        rounds: rounds of the sampler after the random start, each followed by a model update.
        seed: of every random choice.
        fine_tune: how the model learns.
    """

    budget: Budget
    sampler: Sampler
    rounds: int = 3
    seed: int = 0
    fine_tune: FineTuneConfig = field(default_factory=FineTuneConfig)


class AdaptProgress:
    """What a display may override; does nothing itself."""

    def start(self, phase: str, total: int) -> None:
        """A phase of so many steps begins."""

    def advance(self, failed: bool = False) -> None:
        """One step of it is done."""


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
        model: the fine-tuned model.
        reasons: of every program to learn from, in the order of picking.
        hold_out: places of the held-out programs.
        before, after: metrics of base and adapted model on the hold-out.
        guard: the comparison.
    """

    model: CostModel
    reasons: tuple[Reason, ...]
    hold_out: tuple[int, ...]
    before: dict[str, float]
    after: dict[str, float]
    guard: GuardResult


class AdaptSession:
    """One checkpoint, one pool, one budget.

    Args:
        checkpoint: the base, with its own device's hardware row.
        features: (N, rows, width) float32 of the pool, with this device's hardware row.
        pool: the candidates.
        measuring: measures them.
        settings: budget, sampler, rounds, seed.
        progress: told of every phase.
        clock: takes the time of every phase.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        features: np.ndarray,
        pool: CandidatePool,
        measuring: PoolMeasuring,
        settings: AdaptSettings,
        progress: AdaptProgress,
        clock: Clock,
    ) -> None:
        self._base, self._features, self._pool = checkpoint, features, pool
        self._measuring, self._settings = measuring, settings
        self._progress, self._clock = progress, clock
        self._sampling_pool = pool.sampling_pool()
        self._hold_out: list[int] = []
        self._learn: list[int] = []
        self._reasons: dict[int, Reason] = {}
        self._model: CostModel = checkpoint.model

    def run(self) -> Outcome:
        """Spend the budget.

        Raises:
            BudgetError: too small to hold out and to learn.
            LabelError: the measurements have no order to learn or to judge by.
            MeasurementFailureRateError: nearly every program failed.
            InterruptedRunError: the user stopped it.
        """
        budget = self._settings.budget
        if budget.kind == "seconds":
            self._pick_and_measure(PROBE_PROGRAMS, 0, budget.seconds, "probe")
        total = self._affordable()
        self._measure_hold_out(max(PROGRAMS_PER_TASK, round(HOLD_OUT_SHARE * total)))
        for number in range(self._settings.rounds + 1):
            if number:
                self._update()
            if not self._round(number):
                break
        self._measuring.check_any()
        self._update(last=True)
        return self._judge()

    def _affordable(self) -> int:
        """Programs that the budget allows in all; of a time, by what one has cost so far."""
        count = self._settings.budget.programs(len(self._pool))
        if count is None:
            count = min(len(self._pool), len(self._learn) + int(self._seconds_left() / self._cost()))
        if count < MIN_PROGRAMS:
            raise BudgetError(
                f"a budget of {self._settings.budget} is {count} of {len(self._pool)} candidates; "
                f"adapting needs {MIN_PROGRAMS}: some to learn from, some to judge by",
                remedy=f"give --budget {MIN_PROGRAMS} or more, or enlarge the pool with --pool",
                programs=count,
                least=MIN_PROGRAMS,
            )
        return count

    def _seconds_left(self) -> float:
        return max(0.0, self._settings.budget.seconds - self._measuring.seconds)

    def _cost(self) -> float:
        """Seconds that one program has cost on average; a failed one may have cost next to nothing."""
        return max(1e-3, self._measuring.seconds / max(1, len(self._measuring.results)))

    def _measure_hold_out(self, count: int) -> None:
        rest = np.setdiff1d(np.arange(len(self._pool)), self._learn)
        rng = np.random.default_rng([self._settings.seed, 1])
        picks = rest[choose_holdout(self._subset(rest), count, rng)]
        seconds = HOLD_OUT_SHARE * self._settings.budget.seconds
        self._hold_out = self._measure(picks, seconds, "hold-out")

    def _round(self, number: int) -> bool:
        """One batch: pick and measure; False when the budget or the pool is used up."""
        batches = self._settings.rounds + 1 - number
        if self._settings.budget.kind == "seconds":
            seconds = self._seconds_left() / batches
            count = int(seconds / self._cost())
        else:
            seconds = math.inf
            count = -(-(self._affordable() - len(self._hold_out) - len(self._learn)) // batches)
        count = min(count, len(self._pool) - len(self._hold_out) - len(self._learn))
        title = f"round {number} of {self._settings.rounds}" if number else "random start"
        return count > 0 and self._pick_and_measure(count, number, seconds, title)

    def _pick_and_measure(self, count: int, number: int, seconds: float, title: str) -> bool:
        """Pick among what is neither learnt from nor held out, and measure it."""
        open_ = np.setdiff1d(np.arange(len(self._pool)), self._hold_out)
        place = {int(index): at for at, index in enumerate(open_)}
        labeled = np.array([place[index] for index in self._learn], dtype=np.int64)
        rng = np.random.default_rng([self._settings.seed, 2, number, len(self._learn)])
        with self._clock("select"):
            sampler = self._settings.sampler
            if number == 0 and not isinstance(sampler, RandomSampler):
                # Rand_Select of algorithm 1, level over the tasks: a task without a label teaches nothing.
                sampler = StratifiedSampler()
            scores = self._model.score(self._features[open_]) if number else None
            chosen = sampler.select(self._subset(open_), labeled, count, scores, rng, round=number)
        reasons = {int(open_[r.index]): replace(r, index=int(open_[r.index])) for r in chosen.reasons}
        measured = self._measure(open_[chosen.indices], seconds, title)
        self._learn += measured
        self._reasons |= {index: reasons[index] for index in reasons if index in measured}
        return bool(measured)

    def _subset(self, indices: np.ndarray) -> Pool:
        return Pool(self._sampling_pool.task[indices], self._sampling_pool.ops)

    def _measure(self, indices: np.ndarray, seconds: float, title: str) -> list[int]:
        self._progress.start(title, len(indices))
        with self._clock("measure"):
            return self._measuring.measure(indices, seconds)

    def _update(self, last: bool = False) -> None:
        """f.update(): from the base's weights, on everything measured so far."""
        with self._clock("fine-tune"):
            self._progress.start("fine-tuning", 1)
            config = replace(self._settings.fine_tune, seed=self._settings.seed)
            try:
                self._model = fine_tune(self._base.model, self._dataset(self._learn), config).model
            except LabelError:
                # A first batch may hold one valid program a task: the next one is picked by the base.
                if last:
                    raise
            self._progress.advance()

    def _dataset(self, indices: list[int]) -> RankingDataset:
        latency = self._measuring.latency(indices)
        valid = np.array(indices, dtype=np.int64)[np.isfinite(latency)]
        return RankingDataset(
            features=self._features[valid],
            latency=latency[np.isfinite(latency)],
            group=self._sampling_pool.task[valid],
            task_ids=tuple(task.task_id for task in self._pool.tasks),
            task_weights=np.array([task.weight for task in self._pool.tasks], dtype=np.float64),
        )

    def _as_base_sees(self, indices: np.ndarray) -> np.ndarray:
        """Features with the base's own device in the hardware row, if there is one."""
        if not self._base.model.config.hardware:
            return self._features[indices]
        return self._base.features(self._pool.sequences(indices))

    def _judge(self) -> Outcome:
        with self._clock("evaluate"):
            latency = self._measuring.latency(self._hold_out)
            valid = np.array(self._hold_out, dtype=np.int64)[np.isfinite(latency)]
            data = self._dataset(self._hold_out)
            base = self._base.model.score(self._as_base_sees(valid))
            adapted = self._model.score(data.features)
            guard = compare(base, adapted, data.latency, data.group, seed=self._settings.seed)
            before, after = (
                evaluate_scores(scores, data.latency, data.group, data.task_weights) for scores in (base, adapted)
            )
        reasons = tuple(self._reasons[index] for index in self._learn)
        return Outcome(self._model, reasons, tuple(self._hold_out), before, after, guard)
