"""The choice between ways to compute an operator, by what a run measures of their tasks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from math import inf
from operator import itemgetter
from typing import TYPE_CHECKING

from .scheduler import TaskProgress, unsearched_room

if TYPE_CHECKING:
    from ..networks.alternatives import Alternative, OperatorShape
    from ..networks.tasks import TuningTask


class AlternativeChoice:
    """Which way to compute an operator is the fastest; the tasks of one that cannot win are dropped.

    All ways share the budget until a slower one's tasks, at what they can still gain, take longer than the fastest's.
    Until it is measured, a way's tasks wait for their turn with what the network gains if they reach the roofline.

    Args:
        tasks: of the network as it is, and those of the alternatives, of weight 0.
        progress: of the tasks; `weight`, `dropped` and `offer` are set.
        alternatives: none where there is nothing to choose; those of one operator compete with each other.
        untuned: latencies in seconds, by task id, of programs that a run has without measuring others; read anew at
            each choice.
    """

    def __init__(
        self,
        tasks: Sequence[TuningTask],
        progress: Sequence[TaskProgress],
        alternatives: Sequence[Alternative],
        untuned: Mapping[str, float] | None = None,
    ) -> None:
        self._ids = [task.task_id for task in tasks]
        self._progress = dict(zip(self._ids, progress, strict=True))
        self._own = Counter({task.task_id: task.weight for task in tasks})
        self._alternatives, self._untuned = alternatives, {} if untuned is None else untuned
        groups: dict[OperatorShape, list[Alternative]] = defaultdict(list)
        for alternative in alternatives:
            groups[alternative.operator].append(alternative)
        self._groups = list(groups.values())
        for task_id, one in self._progress.items():
            one.weight = max([self._own[task_id], *(a.other.get(task_id, 0) for a in alternatives)])
            one.offer = None if self._own[task_id] else 0.0

    def update(self) -> None:
        """Drop the tasks that serve no way which can still be the fastest, and price those that were never measured."""
        for one in self._progress.values():
            one.offer = None if one.offer is None else 0.0
        for group in self._groups:
            best = max(group, key=self._gain)
            best_gain = max(0.0, self._gain(best))
            if self._latency(best.direct, optimistic=True) > self._latency(best.other):
                self._drop(best.direct)
            for alternative in group:
                reachable = self._gain(alternative, optimistic=True)
                waiting = [self._progress[task_id] for task_id in alternative.other]
                waiting = [one for one in waiting if one.offer is not None and one.best == inf]
                for one in waiting:
                    if self._latency(alternative.direct) < inf:
                        one.offer = max(one.offer or 0.0, (reachable - best_gain) / len(waiting))
                if reachable < best_gain:
                    self._drop(alternative.other)
        for task_id in self._needed():
            self._progress[task_id].dropped = False

    def chosen(self, latencies: Mapping[str, float] | None = None) -> frozenset[OperatorShape]:
        """Return the shapes of the operators that are faster the other way; see `weights`."""
        gains = [{one.shape: self._gain(one, latencies=latencies) for one in group} for group in self._groups]
        best = [max(group.items(), key=itemgetter(1)) for group in gains]
        return frozenset(shape for shape, gain in best if gain > 0)

    def weights(self, latencies: Mapping[str, float] | None = None) -> dict[str, int]:
        """Return the calls of each task in the network with the ways that are the fastest.

        Args:
            latencies: in seconds by task id, of the tasks that have a program; None for those that are known now.
        """
        calls, chosen = Counter(self._own), self.chosen(latencies)
        for alternative in self._alternatives:
            if alternative.shape in chosen:
                calls.update(alternative.other)
                calls.subtract(alternative.direct)
        return {task_id: calls[task_id] for task_id in self._ids}

    def _needed(self) -> set[str]:
        """Return the tasks of the network as it is chosen now."""
        return {task_id for task_id, weight in self.weights().items() if weight > 0}

    def _drop(self, calls: Mapping[str, int]) -> None:
        for task_id in calls:
            self._progress[task_id].dropped = True

    def _gain(
        self, alternative: Alternative, optimistic: bool = False, latencies: Mapping[str, float] | None = None
    ) -> float:
        """Return the seconds that the network gains by an alternative, measured or as far as more trials may bring it.

        It is -inf where a task of the alternative has no program, and inf where one of what it replaces has none.
        """
        if latencies is None:
            direct, other = self._latency(alternative.direct), self._latency(alternative.other, optimistic)
        else:
            direct, other = (
                sum(count * latencies.get(task_id, inf) for task_id, count in calls.items())
                for calls in (alternative.direct, alternative.other)
            )
        return -inf if other == inf else direct - other

    def _latency(self, calls: Mapping[str, int], optimistic: bool = False) -> float:
        """Return the seconds of some calls, measured or as far as more trials may lower them; inf if one is unknown."""
        tasks = [(self._progress[task_id], self._untuned.get(task_id, inf), count) for task_id, count in calls.items()]
        return sum(count * min(untuned, _reachable(t) if optimistic else t.best) for t, untuned, count in tasks)


def _reachable(task: TaskProgress) -> float:
    """Return the latency in seconds that more trials of a task may lead to; inf where all of its programs fail."""
    if task.best < inf:
        return task.best - unsearched_room(task)
    return inf if task.hopeless() else task.bound
