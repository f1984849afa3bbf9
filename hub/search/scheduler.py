"""The order of tasks in a tuning run: a floor for each task first, then what can still be gained.

MetaSchedule's own scheduler gives each task `num_trials_per_iter` = 64 programs in turn, so that 128 trials
over 27 tasks leave 25 of them untuned (apache/tvm#18159). Here the batch follows from the trials at hand.

What a task can still gain is bounded by the device's roofline, and is taken to shrink with the trials spent. The
cost model's promise (`expected_gain`) counts as far as its scores were right on this task: a model that is wrong about
a task, and promises nothing, must not starve it.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any

import numpy as np
from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.task_scheduler import PyTaskScheduler

# MetaSchedule's defaults (GradientBased).
ALPHA = 0.2
WINDOW = 3
# Rounds after which a task without one valid program is no longer preferred.
FAILING_ROUNDS = 2
MAX_BATCH = 64
# Valid programs of a task before its scores count as calibrated, and rounds that the calibration looks back on.
LEAST_PROGRAMS = 4
ROUNDS = 4
# Trials of a task after which half of its room counts as searched, and the least room, as a share of the best latency.
HALF_SEARCHED = 16
LEAST_ROOM = 0.02
# Share of a network's latency that is next to nothing.
_NOTHING = 1e-3
# Share of the best latency that a batch must gain to count as news.
NEWS = 0.01
# Programs after which the order of a model's scores is known half as well as it can be.
HALF_TRUSTED = 8
# Draws of the batch's latencies; the same ones for every task, so that two tasks differ by what they are.
_DRAWS = np.random.default_rng(0).standard_normal((256, 64))


@dataclass(frozen=True)
class ScoredRound:
    """One measured batch and what was left in the model's order after it.

    Attributes:
        scores: of the measured programs, as the model gave them before they were measured; higher is faster.
        latencies: of the same in seconds; not finite: failed.
        waiting: scores of the best programs that were left, by the same model at the same time.
    """

    scores: tuple[float, ...]
    latencies: tuple[float, ...]
    waiting: tuple[float, ...]

    def valid(self) -> tuple[np.ndarray, np.ndarray]:
        """Return scores and log latencies of the programs that ran."""
        scores, latencies = np.array(self.scores), np.array(self.latencies)
        good = np.isfinite(latencies) & np.isfinite(scores)
        return scores[good], np.log(latencies[good])


@dataclass(frozen=True)
class ModelPromise:
    """What a model's scores promise for the next batch of a task.

    Attributes:
        seconds: by which the batch is expected to beat the best latency.
        trust: how far the scores have been right on this task, from 0 to 1: the share of the variance of log latency
            that they explained, shrunk where few programs were measured.
    """

    seconds: float
    trust: float


def expected_gain(rounds: Sequence[ScoredRound], best: float) -> ModelPromise | None:
    """Return what the next batch is expected to beat `best` by: E[max(0, best - fastest of the batch)].

    Scores differ in level and scale from round to round (the model learns), so latencies are fitted against scores
    within rounds; the next batch's follow from the last round's, whose left-over programs it will begin with.

    Args:
        rounds: of one task, oldest first.
        best: its lowest latency in seconds, finite.

    Returns:
        None where too little was measured to calibrate on.
    """
    recent = [r.valid() for r in rounds[-ROUNDS:]]
    if not recent or len(recent[-1][1]) < 2:  # the waiting ones compare with the last round's own scores
        return None
    recent = [(scores, logs) for scores, logs in recent if len(logs) > 1]
    if not rounds[-1].waiting or sum(len(logs) for _, logs in recent) < LEAST_PROGRAMS:
        return None
    x = np.concatenate([scores - scores.mean() for scores, _ in recent])
    y = np.concatenate([logs - logs.mean() for _, logs in recent])
    slope = min(0.0, float(x @ y) / float(x @ x)) if float(x @ x) > 0 else 0.0
    rest, total = float(np.square(y - slope * x).sum()), float(np.square(y).sum())
    spread = (rest / (len(y) - len(recent))) ** 0.5
    trust = (1.0 - rest / total if total > 0 else 0.0) * len(y) / (len(y) + HALF_TRUSTED)
    last_scores, last_logs = recent[-1]
    waiting = np.array(rounds[-1].waiting[: _DRAWS.shape[1]])
    expected = last_logs.mean() + slope * (waiting - last_scores.mean())
    fastest = np.exp((expected + spread * _DRAWS[:, : len(waiting)]).min(axis=1))
    return ModelPromise(float(np.maximum(0.0, best - fastest).mean()), trust)


@dataclass
class TaskProgress:
    """The state of one task's tuning.

    Attributes:
        weight: how many times the network calls it.
        fixed: True for a design space of one program, which one trial settles.
        cost: rough work (FLOPs), to order the floor rounds.
        bound: latency in seconds that no program of the task can be under, by the device's roofline; 0: not known.
        trials: programs measured.
        history: best latency in seconds after each round, infinite while none is valid.
        exhausted: True where the search has nothing new.
        dropped: True where the network does better without the task, see `AlternativeChoice`.
        offer: seconds that the network may gain from the first program of a task which it can do without.
        scored: the last rounds of which the model's scores are known, oldest first.
        known: latency in seconds of the fastest program that an earlier run measured.
        cheap_search: True where a search costs next to nothing beside a measurement, so that rounds may start small.
    """

    weight: float
    fixed: bool = False
    cost: float = 0.0
    bound: float = 0.0
    trials: int = 0
    history: list[float] = field(default_factory=list)
    exhausted: bool = False
    dropped: bool = False
    offer: float | None = None
    scored: deque[ScoredRound] = field(default_factory=lambda: deque(maxlen=ROUNDS))
    known: float = inf
    cheap_search: bool = False

    @property
    def best(self) -> float:
        """Return the best latency so far in seconds; infinite while none is valid."""
        return min(self.known, self.history[-1]) if self.history else self.known

    @property
    def rounds(self) -> int:
        """Return the number of batches measured."""
        return len(self.history)

    @property
    def idle(self) -> int:
        """Return the number of last batches that together made the best latency less than `NEWS` better."""
        return sum(before <= self.best * (1 + NEWS) for before in self.history[:-1])

    def record(self, latencies: Sequence[float]) -> None:
        """Take one round's latencies in seconds (not finite: failed)."""
        self.trials += len(latencies)
        self.history.append(min([self.best, *(x for x in latencies if isfinite(x))]))

    def hopeless(self) -> bool:
        """Return True after so many rounds without a valid program."""
        return not isfinite(self.best) and self.rounds >= FAILING_ROUNDS

    def open(self) -> bool:
        """Return True where more trials may help."""
        return not self.exhausted and not self.dropped and not (self.fixed and self.trials)


def batch_size(trials: int, tasks: Sequence[TaskProgress], asked: int | None = None) -> int:
    """Return the programs of a round at most: `asked`, or so many that a full round of every task takes half of
    the trials, 1 to 64.

    Where searching is cheap the first rounds are smaller, see `round_size`, and more goes where the gain is.
    """
    if asked is not None:
        return max(1, asked)
    searchable = sum(not task.fixed for task in tasks)
    left = trials - (len(tasks) - searchable)
    return min(MAX_BATCH, max(1, left // max(1, 2 * searchable)))


def gain(task: TaskProgress) -> float:
    """Return the expected improvement of the network in seconds from one more round of this task.

    It is infinite where nothing valid is known yet: the network cannot be compiled well without the task.
    """
    if not task.rounds or not isfinite(task.best):
        return inf if task.offer is None else task.offer
    promised = expected_gain(list(task.scored), task.best)
    if promised is not None:
        return task.weight * promised.seconds
    past = task.history[-1 - min(WINDOW, task.rounds - 1)]
    steps = min(WINDOW, task.rounds - 1)
    backward = (past - task.best) / steps if steps and isfinite(past) else 0.0
    return task.weight * (ALPHA * backward + (1 - ALPHA) * task.best / task.rounds)


def _room(task: TaskProgress) -> float:
    return max(task.best - task.bound, LEAST_ROOM * task.best)


def unsearched_room(task: TaskProgress) -> float:
    """Return the seconds between a task's best latency and the roofline, less the more was searched."""
    return _room(task) / (1 + task.trials / HALF_SEARCHED)


def priority(task: TaskProgress) -> float:
    """Return what the network can still gain in seconds from this task, by which tasks take turns.

    The room down to the roofline, less the more was searched; and the model's promise, as far as it is trusted here,
    less the more batches have not kept it: scores may order programs rightly whose best one is known. As `gain`, it is
    infinite where nothing valid is known yet.
    """
    if not task.rounds or not isfinite(task.best):
        return inf if task.offer is None else task.offer
    room, unsearched = _room(task), unsearched_room(task)
    promise = expected_gain(list(task.scored), task.best) or ModelPromise(0.0, 0.0)
    promised = min(promise.seconds, room) / (1 + task.idle)
    return task.weight * (promise.trust * promised + (1 - promise.trust) * unsearched)


def settled(tasks: Sequence[TaskProgress], share: float) -> bool:
    """Return True where one more round of any task is expected to gain less than `share` of the network's latency.

    Also where all programs of the other tasks were measured, and those that are open take next to none of it together:
    products of tiles have a few dozen programs each. The network's latency is the sum over tasks of weight * best.
    Tasks that were not measured, or have no valid program yet, promise everything; those that `next_round` prefers no
    longer promise nothing.
    """
    alive = [task for task in tasks if not task.hopeless() and not task.dropped]
    total = sum(task.weight * task.best for task in alive if task.offer is None)
    if not isfinite(total) or not alive:
        return not tasks
    still = [task for task in alive if task.open()]
    if all(task.rounds for task in still) and sum(task.weight * task.best for task in still) < _NOTHING * total:
        return True
    return all(gain(task) < share * total for task in still)


def round_size(task: TaskProgress, batch: int) -> int:
    """Return the programs of a task's next round: 1, 2, 4, ... up to `batch` where searching is cheap.

    A pretrained model's first choice is worth more than its eighth, and what it learns from the first improves the
    second: small rounds give every task a good program soon.
    """
    return min(batch, 2**task.rounds) if task.cheap_search else batch


def next_round(tasks: Sequence[TaskProgress], batch: int, room: int) -> list[tuple[int, int]]:
    """Return what to measure together next: indices of tasks, best first, and the programs of each; none at the end.

    Builds of different tasks overlap, so that small rounds do not leave cores idle. Tasks that were never measured
    come before all others, but for those that the network can do without.

    Args:
        tasks: all tasks.
        batch: programs of one task at most.
        room: programs after which no further task joins.
    """
    open_tasks = [i for i, task in enumerate(tasks) if task.open()]
    fresh = [i for i in open_tasks if not tasks[i].rounds and tasks[i].offer is None]
    hopeful = [i for i in open_tasks if not tasks[i].hopeless()]
    if fresh:
        order = sorted(fresh, key=lambda i: -tasks[i].weight * tasks[i].cost)
    else:
        order = sorted(hopeful or open_tasks, key=lambda i: -priority(tasks[i]))
    chosen: list[tuple[int, int]] = []
    for i in order:
        if sum(count for _, count in chosen) >= room:
            break
        chosen.append((i, 1 if tasks[i].fixed else round_size(tasks[i], batch)))
    return chosen


@derived_object
class GainScheduler(PyTaskScheduler):
    """The same order of tasks in the form that MetaSchedule calls, for `tune_tir` and `tune_tasks`.

    Neither the device's roofline nor the scores of programs that a strategy left are known here: what a task can gain
    is its latency, less the more it was searched; and a round is as large as `num_trials_per_iter`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._tasks: list[TaskProgress] = []
        self._running: int | None = None

    def next_task_id(self) -> int:
        """Return the task of the next round, -1 at the end; waits for the results of the last one."""
        this: Any = self
        outer = this._outer()  # the TVM object, which has the records of the tasks
        records = list(outer.tasks_)
        if not self._tasks:
            self._tasks = [TaskProgress(float(record.task_weight), cost=float(record.flop)) for record in records]
        if self._running is not None and records[self._running].runner_futures is not None:
            results = outer.join_running_task(self._running)
            times = [[float(s) for s in result.run_secs or ()] for result in results]
            self._tasks[self._running].record([float(np.median(one)) if one else inf for one in times])
        for task, record in zip(self._tasks, records, strict=True):
            task.exhausted = bool(record.is_terminated)
        chosen = next_round(self._tasks, batch=1, room=1)
        self._running = chosen[0][0] if chosen else None
        return -1 if self._running is None else self._running


def task_scheduler() -> Any:
    """Return tchub's order of tasks, for `ms.tune_tir(..., task_scheduler=...)` and its kin."""
    return GainScheduler()
