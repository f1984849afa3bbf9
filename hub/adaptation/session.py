"""The rounds of an adaptation: hold out, pick, measure, learn, and at the end compare."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ...zoo.adapt.budget import AUTO_LABELS
from ...zoo.adapt.errors import LabelError, SamplingError
from ...zoo.adapt.holdout import PROGRAMS_PER_TASK, choose_holdout
from ...zoo.adapt.kept_models import model_mark
from ...zoo.adapt.sampling import Pool, Reason
from ...zoo.adapt.stopping import CurvePoint, StopDecision, decide
from .first import asks_base, first_sampler
from .kept import SessionMemory, SessionPicks, kept_decisions
from .learn import Learner, Told
from .least import check_count
from .settings import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .measure import PoolMeasuring
    from .pool import CandidatePool

HOLD_OUT_SHARE = 0.2
# Programs that tell what one costs, before a budget of time can be divided.
PROBE_PROGRAMS = 8
# Of a budget that stops itself: programs of a round, for each task and in all.
AUTO_PER_TASK, AUTO_BATCH = 2, 16


class AdaptSession:
    """One start, one pool, one budget.

    Args:
        learner: makes the models.
        pool: the candidates.
        measuring: measures them.
        told: settings, progress and clock.
        to_rank: whether the tasks are those of what will be tuned, and do not stand for others.
    """

    def __init__(
        self, learner: Learner, pool: CandidatePool, measuring: PoolMeasuring, told: Told, to_rank: bool
    ) -> None:
        self._learner, self._pool, self._measuring = learner, pool, measuring
        self._told, self._settings, self._clock = told, told.settings, told.clock
        self._sampling_pool = pool.sampling_pool(to_rank)
        self._hold_out: list[int] = []
        self._within = np.ones(len(pool), dtype=bool)
        self._learn: list[int] = []
        self._reasons: dict[int, Reason] = {}
        self._curve: list[CurvePoint] = []
        self._stop: StopDecision | None = None
        self._update_seconds = 0.0
        self._decisions = kept_decisions(told.folder)
        words = (told.scope, pool.mark(), self._settings.sampler.name, str(self._settings.seed), *learner.words())
        self._memory = SessionMemory(told.folder, words, self._settings.budget)

    def spend(self) -> None:
        """Measure what the budget allows, in rounds.

        Raises:
            BudgetError: too small to hold out and to learn.
            MeasurementFailureRateError: nearly every program failed.
            InterruptedRunError: the user stopped it.
        """
        budget, rounds = self._settings.budget, self._settings.rounds
        number = self._go_on()
        if budget.kind == "seconds" and not self._learn:
            self._pick_and_measure(PROBE_PROGRAMS, 0, budget.seconds, "probe", self._within)
        affordable = self._affordable()
        self._measure_hold_out(self._held_count(affordable) - len(self._hold_out))
        self._within = self._tasks_within(affordable - len(self._hold_out))
        while budget.kind == "auto" or number <= rounds:
            measured = self._round(number)
            if not number:
                self._learner.choose(self._learn)
            if not measured:
                break
            number += 1
            if budget.kind == "auto" or number <= rounds:
                self._update()
            if budget.kind == "auto" and self._enough():
                break
        self._measuring.check_any()
        if self._stop is not None and not self._stop.stop:
            reason = f"{self._stop.reason}, but no more may be measured of this pool"
            self._stop = replace(self._stop, stop=True, reason=reason)
        self._memory.ended(SessionPicks(self._picks(), tuple(self._hold_out)))

    def learn(self) -> Outcome:
        """Make the last model of what `spend` measured, and compare it with its base.

        Raises:
            LabelError: the measurements have no order to learn or to judge by.
        """
        with self._clock("learn"):
            adapted = self._learner.finish(self._learn, self._hold_out)
        with self._clock("evaluate"):
            judgement = self._learner.judge(adapted, self._learn, self._hold_out)
        held, curve = tuple(self._hold_out), tuple(self._curve)
        return Outcome(adapted, self._learner.start, self._picks(), held, judgement, curve, self._stop)

    def _picks(self) -> tuple[Reason, ...]:
        """What was learnt from, in the order of picking."""
        return tuple(self._reasons[index] for index in self._learn)

    def _go_on(self) -> int:
        """Take up what an earlier session of a smaller budget measured; the number of the round that comes next."""
        before = self._memory.before(self._fits)
        if not before.picks:
            return 0
        self._measure(before.places, math.inf, "measured before")
        self._learn, self._hold_out = [pick.index for pick in before.picks], list(before.hold_out)
        self._reasons = {pick.index: pick for pick in before.picks}
        self._told.progress.note(f"goes on from {len(before.places)} programs that a smaller budget measured")
        self._learner.choose(self._learn)
        self._update()
        return 1

    def _fits(self, before: SessionPicks) -> bool:
        """Whether the budget would have allowed it too."""
        count = self._settings.budget.programs(len(self._pool))
        if count is None:
            return self._measuring.paid_seconds(before.places) <= self._settings.budget.seconds
        return len(before.places) <= count

    def _affordable(self) -> int:
        """Programs that the budget allows in all; of a time, by what one has cost so far."""
        count = self._settings.budget.programs(len(self._pool))
        if count is None:
            measured = len(self._learn) + len(self._hold_out)
            count = min(len(self._pool), measured + int(self._seconds_left() / self._cost()))
        if self._settings.budget.kind == "auto":
            count = min(count, (AUTO_LABELS + PROGRAMS_PER_TASK) * len(self._pool.tasks))
        check_count(self._settings.budget, count, f"{len(self._pool)} candidates")
        return count

    def _held_count(self, affordable: int) -> int:
        """Programs to hold out; a budget that stops itself may end early, so its most is not what they share."""
        count = round(HOLD_OUT_SHARE * affordable)
        if self._settings.budget.kind == "auto":
            count = min(count, PROGRAMS_PER_TASK * len(self._pool.tasks))
        return max(PROGRAMS_PER_TASK, count)

    def _seconds_left(self) -> float:
        return max(0.0, self._settings.budget.seconds - self._measuring.seconds)

    def _cost(self) -> float:
        """Seconds that one program has cost on average; a failed one may have cost next to nothing."""
        return max(1e-3, self._measuring.seconds / max(1, len(self._measuring.results)))

    def _measure_hold_out(self, count: int) -> None:
        if self._hold_out and count < PROGRAMS_PER_TASK:
            return
        learnt = self._learner.learnt_before()
        rest = np.setdiff1d(np.arange(len(self._pool)), [*self._learn, *self._hold_out, *learnt])
        rng = np.random.default_rng([self._settings.seed, 1])
        try:
            picks = rest[choose_holdout(self._subset(rest), count, rng, learnt=len(learnt))]
        except SamplingError:
            if self._hold_out:
                return  # what a smaller budget held out must do
            raise
        seconds = HOLD_OUT_SHARE * self._settings.budget.seconds
        self._hold_out += self._measure(picks, seconds, "hold-out")

    def _tasks_within(self, count: int) -> np.ndarray:
        """(N,) bool: programs of tasks that so many labels can teach, two each; those that are judged come first.

        One program of each task is all that a small budget would buy of many tasks, and it has no order to learn.
        """
        tasks, group = len(self._pool.tasks), self._sampling_pool.task
        if count >= 2 * tasks:
            return np.ones(len(self._pool), dtype=bool)
        rng = np.random.default_rng([self._settings.seed, 3])
        judged = np.unique(group[self._hold_out])
        order = [*rng.permutation(judged), *rng.permutation(np.setdiff1d(np.arange(tasks), judged))]
        return np.isin(group, order[: max(1, count // 2)])

    def _round(self, number: int) -> bool:
        """One batch: pick and measure; False when the budget or the pool is used up."""
        rounds, title = self._settings.rounds, f"round {number}" if number else "first batch"
        within, seconds = self._within, math.inf
        if self._settings.budget.kind == "auto":
            count = min(self._batch(), self._affordable() - len(self._hold_out) - len(self._learn))
        elif self._settings.budget.kind == "seconds":
            seconds = self._seconds_left() / (rounds + 1 - number)
            count = max(1, int(seconds / self._cost())) if seconds else 0  # time for less than one measures one
        else:
            left = self._affordable() - len(self._hold_out) - len(self._learn)
            count = -(-left // (rounds + 1 - number))
        if number and self._settings.budget.kind != "auto":
            title += f" of {rounds}"
        if not number:
            within = within & self._tasks_within(count)  # or the first model would have no order to learn
        count = min(count, len(np.setdiff1d(np.flatnonzero(within), self._hold_out + self._learn)))
        return count > 0 and self._pick_and_measure(count, number, seconds, title, within)

    def _batch(self) -> int:
        """Programs of a round of a budget that stops itself."""
        return max(AUTO_BATCH, AUTO_PER_TASK * len(self._pool.tasks))

    def _enough(self) -> bool:
        """A point of the learning curve, and whether another round is not worth its time."""
        with self._clock("evaluate"):
            self._curve.append(self._learner.point(self._learn, self._hold_out))
        count = self._batch()
        cost = count * self._cost() + self._update_seconds
        # The first batch and the least rounds each give a point.
        least, words = self._settings.rounds + 1, self._decided_on()
        self._stop = self._decisions.get(words)
        if self._stop is None:
            self._stop = decide(self._curve, count, cost, self._settings.worth, least)
            self._decisions.put(words, self._stop.as_dict())
        point = self._curve[-1]
        self._told.progress.note(
            f"{point.labels} labels, {point.seconds:.0f} s: choices {100 * point.slowdown:.1f}% slower than the best, "
            f"pairwise {point.pairwise:.3f}; {self._stop.reason}"
        )
        return self._stop.stop

    def _decided_on(self) -> tuple[str, ...]:
        """Words that tell this moment from any other: what is measured, what was learnt of it, what it is worth."""
        own, parts = self._settings, (self._learn, self._hold_out)
        told = (own.sampler.name, own.rounds, own.worth, own.seed, own.fine_tune, model_mark(self._learner.start.model))
        measured = (sorted(zip(part, self._measuring.latency(part).tolist(), strict=True)) for part in parts)
        return tuple(map(repr, (*told, len(self._curve), *measured)))

    def _pick_and_measure(self, count: int, number: int, seconds: float, title: str, within: np.ndarray) -> bool:
        """Pick among what is neither learnt from nor held out, `within` (N,) bool, and measure it."""
        # What was measured before is open in any case: it is labeled.
        open_ = np.setdiff1d(np.union1d(np.flatnonzero(within), self._learn), self._hold_out).astype(np.int64)
        labeled = np.searchsorted(open_, np.array(self._learn, dtype=np.int64))
        rng = np.random.default_rng([self._settings.seed, 2, number, len(self._learn)])
        with self._clock("select"):
            sampler = self._settings.sampler if number else first_sampler(self._settings.sampler)
            view = self._learner.view(open_, labeled) if number or asks_base(sampler) else None
            chosen = sampler.select(self._subset(open_), labeled, count, view, rng, round=number)
        reasons = {int(open_[r.index]): replace(r, index=int(open_[r.index])) for r in chosen.reasons}
        measured = self._measure(open_[chosen.indices], seconds, title)
        self._learn += measured
        self._reasons |= {index: reasons[index] for index in reasons if index in measured}
        return bool(measured)

    def _subset(self, indices: np.ndarray) -> Pool:
        return replace(self._sampling_pool, task=self._sampling_pool.task[indices])

    def _measure(self, indices: Sequence[int] | np.ndarray, seconds: float, title: str) -> list[int]:
        """Places of these that were measured; where a clock ended the batch, it ends there again."""
        places = [int(index) for index in indices]
        done = self._memory.batch(title, places) if seconds < math.inf else None
        self._told.progress.start(title, len(places if done is None else done))
        with self._clock("measure"):
            if done is not None:
                return self._measuring.measure(done)
            done = self._measuring.measure(places, seconds)
        if seconds < math.inf:
            self._memory.keep_batch(title, places, done)
        return done

    def _update(self) -> None:
        """A model for the next round's picks."""
        began = time.perf_counter()
        with self._clock("fine-tune"):
            self._told.progress.start("fine-tuning", 1)
            try:
                self._learner.update(self._learn)
            except LabelError:
                # A first batch may hold one valid program a task: the next one is picked by the start.
                self._told.progress.note("the labels so far have no order to learn; the next are picked without them")
            self._told.progress.advance()
        self._update_seconds = time.perf_counter() - began
