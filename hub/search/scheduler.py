"""Which task gets the next trials: a floor for each task first, then the largest expected gain.

MetaSchedule's own scheduler gives each task `num_trials_per_iter` = 64 programs in turn, so that 128 trials
over 27 tasks leave 25 of them untuned (apache/tvm#18159). Here the batch follows from the trials at hand. The gain is
what the cost model's scores promise, once a task has measured programs to set them against (`expected_gain`); until
then MetaSchedule's gradient: alpha * (recent improvement) + (1 - alpha) * (best latency / rounds).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, isfinite

from .expected_gain import WINDOW as ROUNDS
from .expected_gain import Round, expected_gain

# MetaSchedule's defaults (GradientBased).
ALPHA = 0.2
WINDOW = 3
# Rounds after which a task without one valid program is no longer preferred.
FAILING_ROUNDS = 2
MAX_BATCH = 64


@dataclass
class TaskProgress:
    """What is known of one task's tuning.

    Attributes:
        weight: how many times the network calls it.
        fixed: whether its design space holds one program, which one trial settles.
        cost: rough work (FLOPs), to order the floor rounds.
        trials: programs measured.
        history: best latency in seconds after each round, infinite while none is valid.
        exhausted: whether the search has nothing new.
        scored: the last rounds of which the model's scores are known, oldest first.
        known: latency in seconds of the fastest program that an earlier run measured.
        cheap_search: whether a search costs next to nothing beside a measurement, so that rounds may start small.
    """

    weight: float
    fixed: bool = False
    cost: float = 0.0
    trials: int = 0
    history: list[float] = field(default_factory=list)
    exhausted: bool = False
    scored: deque[Round] = field(default_factory=lambda: deque(maxlen=ROUNDS))
    known: float = inf
    cheap_search: bool = False

    @property
    def best(self) -> float:
        """Best latency so far in seconds; infinite while none is valid."""
        return min(self.known, self.history[-1]) if self.history else self.known

    @property
    def rounds(self) -> int:
        """Batches measured."""
        return len(self.history)

    def record(self, latencies: Sequence[float]) -> None:
        """Take one round's latencies in seconds (not finite: failed)."""
        self.trials += len(latencies)
        self.history.append(min([self.best, *(x for x in latencies if isfinite(x))]))

    def hopeless(self, failing_rounds: int = FAILING_ROUNDS) -> bool:
        """Whether it had its rounds and no valid program came of them."""
        return not isfinite(self.best) and self.rounds >= failing_rounds

    def open(self) -> bool:
        """Whether more trials may help."""
        return not self.exhausted and not (self.fixed and self.trials)


def batch_size(trials: int, tasks: Sequence[TaskProgress], asked: int | None = None) -> int:
    """Programs a round at most: what was asked for, or so many that a full round of every task takes half of the
    trials, 1 to 64.

    Where searching is cheap the first rounds are smaller, see `round_size`, and more goes where the gain is.
    """
    if asked is not None:
        return max(1, asked)
    searchable = sum(not task.fixed for task in tasks)
    left = trials - (len(tasks) - searchable)
    return min(MAX_BATCH, max(1, left // max(1, 2 * searchable)))


def gain(task: TaskProgress) -> float:
    """Expected improvement of the network in seconds from one more round of this task."""
    if not task.rounds or not isfinite(task.best):
        return inf  # nothing valid yet: the network cannot be compiled well without it
    promised = expected_gain(list(task.scored), task.best)
    if promised is not None:
        return task.weight * promised
    past = task.history[-1 - min(WINDOW, task.rounds - 1)]
    steps = min(WINDOW, task.rounds - 1)
    backward = (past - task.best) / steps if steps and isfinite(past) else 0.0
    return task.weight * (ALPHA * backward + (1 - ALPHA) * task.best / task.rounds)


def settled(tasks: Sequence[TaskProgress], share: float) -> bool:
    """Whether one more round of any task is expected to gain less than `share` of the network's latency.

    The network's latency is the sum over tasks of weight * best. Tasks that were not measured, or have no valid
    program yet, promise everything; those that `next_round` prefers no longer promise nothing.
    """
    alive = [task for task in tasks if not task.hopeless()]
    total = sum(task.weight * task.best for task in alive)
    if not isfinite(total) or not alive:
        return not tasks
    return all(gain(task) < share * total for task in alive if task.open())


def round_size(task: TaskProgress, batch: int) -> int:
    """Programs of a task's next round: 1, 2, 4, ... up to `batch` where searching is cheap.

    A pretrained model's first choice is worth more than its eighth, and what it learns from the first improves the
    second: small rounds give every task a good program soon.
    """
    return min(batch, 2**task.rounds) if task.cheap_search else batch


def next_round(
    tasks: Sequence[TaskProgress], batch: int, room: int, failing_rounds: int = FAILING_ROUNDS
) -> list[tuple[int, int]]:
    """What to measure together next: indices of tasks, best first, and how many programs of each; empty at the end.

    Builds of different tasks overlap, so that small rounds do not leave cores idle. Tasks that were never measured
    come before all others.

    Args:
        tasks: all tasks.
        batch: programs of one task at most.
        room: programs after which no further task joins.
        failing_rounds: rounds after which a task without one valid program is no longer preferred.
    """
    open_tasks = [i for i, task in enumerate(tasks) if task.open()]
    fresh = [i for i in open_tasks if not tasks[i].rounds]
    hopeful = [i for i in open_tasks if not tasks[i].hopeless(failing_rounds)]
    if fresh:
        order = sorted(fresh, key=lambda i: -tasks[i].weight * tasks[i].cost)
    else:
        order = sorted(hopeful or open_tasks, key=lambda i: -gain(tasks[i]))
    chosen: list[tuple[int, int]] = []
    for i in order:
        if sum(count for _, count in chosen) >= room:
            break
        chosen.append((i, 1 if tasks[i].fixed else round_size(tasks[i], batch)))
    return chosen
