"""The rounds of an adaptation: hold out, pick, measure, learn, and at the end compare."""

import hashlib
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from ...zoo.adapt import AdaptError, LabelError, Pool, Sampler, choose_holdout, create_sampler, parse_budget
from ...zoo.adapt.adapt_model import AdaptedModel
from ...zoo.adapt.budget import AUTO_LABELS, LearningPoint, StopDecision, decide
from ...zoo.adapt.guard import Judgement
from ...zoo.adapt.method import model_digest
from ...zoo.adapt.sampling import RandomSampler, RDUPlusSampler, Reason, StrataSampler, StratifiedSampler
from ...zoo.adapt.sampling.pool import PROGRAMS_PER_TASK
from ..records.store import RunStore
from .config import check_count
from .learner import Learner
from .sources import learnt_by

HOLD_OUT_SHARE = 0.2
# Programs that tell what one costs, before a budget of time can be divided.
PROBE_PROGRAMS = 8
# Of a budget that stops itself: programs of a round, for each task and in all.
AUTO_PER_TASK, AUTO_BATCH = 2, 16


def _indices(session: dict[str, Any]) -> list[int]:
    """Return the programs of a session that has ended, those to learn from first."""
    return [*(row["index"] for row in session["learn"]), *session["hold_out"]]


def first_sampler(sampler: Sampler) -> Sampler:
    """Return what picks round 0: Rand_Select of algorithm 1 (TCL), level over tasks; tchub's own ask the base."""
    if isinstance(sampler, RandomSampler):
        return sampler
    return StrataSampler() if isinstance(sampler, StrataSampler | RDUPlusSampler) else StratifiedSampler()


@dataclass
class AdaptSession:
    """One start, one pool, one budget.

    Attributes:
        workload: whose tasks the candidates are of.
        journal: keeps what a clock decided and what was measured, for the same command or a larger budget to go on
            from; None where nothing is measured.
        reasons: of each measured program to learn from; learn: these programs in the order of picking.
        curve: of a budget that stops itself, a point a round; stop: its last decision.
    """

    learner: Learner
    workload: str
    journal: RunStore | None
    reasons: dict[int, Reason] = field(default_factory=dict)
    learn: list[int] = field(default_factory=list)
    hold_out: list[int] = field(default_factory=list)
    curve: list[LearningPoint] = field(default_factory=list)
    stop: StopDecision | None = None

    def __post_init__(self) -> None:
        self.pool, self.measurer, self.context = self.learner.pool, self.learner.measurer, self.learner.context
        self._config = config = self.context.config
        self._budget, self._sampler = parse_budget(config.budget), create_sampler(config.sampler)
        self._progress, self._timed = self.context.progress, self.context.timed
        self._sampling_pool = Pool(self.pool.group, tuple(task.op for task in self.pool.tasks), self.pool.to_rank)
        self._within = np.ones(len(self.pool), dtype=bool)
        self._update_seconds = 0.0
        # Sessions of one key differ by budget alone.
        self._key = (self.pool.digest(), self._sampler.name, str(config.seed), *self.learner.key())

    def spend(self) -> None:
        """Measure what the budget allows, in rounds.

        Raises:
            AdaptError: too small to hold out and to learn.
            MeasurementFailureRateError: nearly every program failed.
            InterruptedRunError: the user stopped it.
        """
        budget, rounds = self._budget, self._config.rounds
        number = self._go_on()
        if budget.kind == "seconds" and not self.learn:
            self._pick_and_measure(PROBE_PROGRAMS, 0, budget.seconds, "probe", self._within)
        affordable = self._affordable()
        count = round(HOLD_OUT_SHARE * affordable)
        if budget.kind == "auto":  # which may end early, so its most is not what they share
            count = min(count, PROGRAMS_PER_TASK * len(self.pool.tasks))
        self._measure_hold_out(max(PROGRAMS_PER_TASK, count) - len(self.hold_out))
        self._within = self._tasks_within(affordable - len(self.hold_out))
        while budget.kind == "auto" or number <= rounds:
            measured = self._round(number)
            if not number:
                self.learner.choose(self.learn)
            if not measured:
                break
            number += 1
            if budget.kind == "auto" or number <= rounds:
                self._update()
            if budget.kind == "auto" and self._enough():
                break
        self.measurer.check(last=True)
        if self.stop is not None and not self.stop.stop:
            reason = f"{self.stop.reason}, but no more may be measured of this pool"
            self.stop = replace(self.stop, stop=True, reason=reason)
        picks = {"learn": [asdict(self.reasons[index]) for index in self.learn], "hold_out": self.hold_out}
        ended = self._recall("ended") or []
        if picks not in ended:
            self._keep([*ended, picks], "ended")

    def finish(self) -> tuple[AdaptedModel, Judgement]:
        """Make the last model of what `spend` measured, and compare it with its base.

        Raises:
            LabelError: the measurements have no order to learn.
        """
        with self._timed("learn"):
            adapted = self.learner.finish(self.learn, self.hold_out)
        with self._timed("evaluate"):
            return adapted, self.learner.judge(adapted, self.learn, self.hold_out)

    def _recall(self, *key: object) -> Any:
        return None if self.journal is None else self.journal.noted(self._note(key))

    def _keep(self, value: Any, *key: object) -> None:
        if self.journal is not None:
            self.journal.note(self._note(key), value)

    def _note(self, key: Sequence[object]) -> str:
        return "adapt " + hashlib.sha256("\n".join((*self._key, *map(repr, key))).encode()).hexdigest()

    def _go_on(self) -> int:
        """Take up the largest session that ended and that this budget allows; return the number of the next round."""
        before = self._recall("start", self._budget)
        if before is None:
            fitting = [one for one in self._recall("ended") or () if self._fits(_indices(one))]
            before = max(fitting, key=lambda one: len(_indices(one)), default={"learn": [], "hold_out": []})
            self._keep(before, "start", self._budget)
        if not before["learn"]:
            return 0
        indices = _indices(before)
        self._measure(indices, math.inf, "measured before")
        self.reasons = {row["index"]: Reason(**row) for row in before["learn"]}
        self.learn, self.hold_out = list(self.reasons), before["hold_out"]
        self._progress.note(f"goes on from {len(indices)} programs that a smaller budget measured")
        self.learner.choose(self.learn)
        self._update()
        return 1

    def _fits(self, indices: Sequence[int]) -> bool:
        count = self._budget.programs(len(self.pool))
        if count is None:
            assert self.journal is not None  # or nothing were kept
            paid = [self.journal.get(*self.pool.name(index)) for index in indices]
            return sum(math.inf if one is None else one.cost_seconds for one in paid) <= self._budget.seconds
        return len(indices) <= count

    def _affordable(self) -> int:
        """Return the programs that the budget allows in all; of a time, by what one has cost so far."""
        count = self._budget.programs(len(self.pool))
        if count is None:
            left = max(0.0, self._budget.seconds - self.measurer.seconds) / self._cost()
            count = min(len(self.pool), len(self.learn) + len(self.hold_out) + int(left))
        if self._budget.kind == "auto":
            count = min(count, (AUTO_LABELS + PROGRAMS_PER_TASK) * len(self.pool.tasks))
        check_count(self._budget, count, f"{len(self.pool)} candidates")
        return count

    def _cost(self) -> float:
        return max(1e-3, self.measurer.seconds / max(1, len(self.measurer.results)))

    def _measure_hold_out(self, count: int) -> None:
        if self.pool.judging:
            self.hold_out = self._measure(self.pool.judging, math.inf, "test tasks")
        if self.hold_out and (count < PROGRAMS_PER_TASK or self.pool.judging):
            return
        # What a checkpoint to start from, or the one to beat, has learnt is no judge of it.
        learnt = learnt_by(self.learner.sources.bases, self.pool)
        rest = np.setdiff1d(np.arange(len(self.pool)), [*self.learn, *self.hold_out, *learnt])
        rng = np.random.default_rng([self._config.seed, 1])
        try:
            picks = rest[choose_holdout(self._subset(rest), count, rng, learnt=len(learnt))]
        except AdaptError:
            if self.hold_out:
                return  # what a smaller budget held out must do
            raise
        self.hold_out += self._measure(picks, HOLD_OUT_SHARE * self._budget.seconds, "hold-out")

    def _tasks_within(self, count: int) -> np.ndarray:
        """Return (N,) bool: programs of tasks that so many labels can teach, two each; those that are judged first."""
        group = self.pool.group
        tasks = np.unique(np.delete(group, list(self.pool.judging)))
        if count >= 2 * len(tasks):
            return np.ones(len(self.pool), dtype=bool)
        rng = np.random.default_rng([self._config.seed, 3])
        judged = np.intersect1d(tasks, group[self.hold_out])
        order = [*rng.permutation(judged), *rng.permutation(np.setdiff1d(tasks, judged))]
        return np.isin(group, order[: max(1, count // 2)])

    def _round(self, number: int) -> bool:
        """Pick and measure one batch; return False when the budget or the pool is used up."""
        rounds, title = self._config.rounds, f"round {number}" if number else "first batch"
        within, seconds, budget = self._within, math.inf, self._budget
        if budget.kind == "auto":
            count = min(self._batch(), self._affordable() - len(self.hold_out) - len(self.learn))
        elif budget.kind == "seconds":
            seconds = max(0.0, budget.seconds - self.measurer.seconds) / (rounds + 1 - number)
            count = max(1, int(seconds / self._cost())) if seconds else 0  # time for less than one measures one
        else:
            left = self._affordable() - len(self.hold_out) - len(self.learn)
            count = -(-left // (rounds + 1 - number))
        if number and budget.kind != "auto":
            title += f" of {rounds}"
        if not number:
            within = within & self._tasks_within(count)  # or the first model would have no order to learn
        count = min(count, len(np.setdiff1d(np.flatnonzero(within), self.hold_out + self.learn)))
        return count > 0 and self._pick_and_measure(count, number, seconds, title, within)

    def _batch(self) -> int:
        return max(AUTO_BATCH, AUTO_PER_TASK * len(self.pool.tasks))

    def _enough(self) -> bool:
        """Add a point to the learning curve, and return whether another round is not worth its time."""
        parts, count = (self.learn, self.hold_out), self._batch()
        with self._timed("evaluate"):
            point = self.learner.point(*parts)
        self.curve.append(point)
        cost = count * self._cost() + self._update_seconds
        # What is measured, what was learnt of it, what it is worth.
        measured = [sorted(zip(part, self.measurer.latency(part).tolist(), strict=True)) for part in parts]
        config, start = self._config, model_digest(self.learner.start.model)
        key = ("decision", config.rounds, config.worth, start, len(self.curve), *measured)
        if row := self._recall(*key):
            self.stop = StopDecision(**row)
        else:
            # The first batch and the least rounds each give a point.
            self.stop = decide(self.curve, count, cost, config.worth, config.rounds + 1)
            self._keep(asdict(self.stop), *key)
        self._progress.note(
            f"{point.labels} labels, {point.seconds:.0f} s: choices {100 * point.slowdown:.1f}% slower than the best, "
            f"pairwise {point.pairwise:.3f}; {self.stop.reason}"
        )
        return self.stop.stop

    def _pick_and_measure(self, count: int, number: int, seconds: float, title: str, within: np.ndarray) -> bool:
        # What was measured before is open in any case: it is labeled.
        open_ = np.setdiff1d(np.union1d(np.flatnonzero(within), self.learn), self.hold_out).astype(np.int64)
        labeled = np.searchsorted(open_, np.array(self.learn, dtype=np.int64))
        rng = np.random.default_rng([self._config.seed, 2, number, len(self.learn)])
        with self._timed("select"):
            sampler = self._sampler if number else first_sampler(self._sampler)
            # The first strata are those of the base's scores; others pick round 0 without a look at the programs.
            asks = number or isinstance(sampler, StrataSampler)
            view = self.learner.view(open_, labeled) if asks else None
            chosen = sampler.select(self._subset(open_), labeled, count, view, rng, round=number)
        reasons = {int(open_[r.index]): replace(r, index=int(open_[r.index])) for r in chosen.reasons}
        measured = self._measure(open_[chosen.indices], seconds, title)
        self.learn += measured
        self.reasons |= {index: reasons[index] for index in reasons if index in measured}
        return bool(measured)

    def _subset(self, indices: np.ndarray) -> Pool:
        return replace(self._sampling_pool, task=self._sampling_pool.task[indices])

    def _measure(self, batch: Sequence[int] | np.ndarray, seconds: float, title: str) -> list[int]:
        """Measure a batch and return what was measured; where a clock ended the batch, it ends there again."""
        indices = [int(index) for index in batch]
        key = ("batch", self._budget, title, indices)
        done = self._recall(*key) if seconds < math.inf else None
        self._progress.start(title, len(indices if done is None else done))
        with self._timed("measure"):
            if done is not None:
                return self.measurer.measure(done)
            done = self.measurer.measure(indices, seconds)
        if seconds < math.inf:
            self._keep(done, *key)
        return done

    def _update(self) -> None:
        began = time.perf_counter()
        with self._timed("fine-tune"):
            self._progress.start("fine-tuning", 1)
            try:
                self.learner.update(self.learn)
            except LabelError:
                # A first batch may hold one valid program a task: the next one is picked by the start.
                self._progress.note("the labels so far have no order to learn; the next are picked without them")
            self._progress.advance()
        self._update_seconds = time.perf_counter() - began
