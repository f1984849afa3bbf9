"""Searches replayed on recorded programs: a task's measured programs are its space, and a search picks the next one.

Tasks take turns as in `tchub tune`. What a measurement would tell is looked up, so that a run takes seconds, and what
a search can find is bounded by what was recorded: about 46 programs a task, of which a third was drawn at random.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, log2
from typing import Any

import numpy as np
from tchub.hub.search.decision_search import SIMILAR
from tchub.hub.search.design_slots import rescale
from tchub.hub.search.design_space import Decisions, decisions_of_trace, extents, kernel_class
from tchub.hub.search.scheduler import TaskProgress, batch_size, next_round
from tchub.hub.search.schedules import ScheduleDatabase
from tchub.hub.search.scorer import PretrainedScorer
from tchub.zoo.adapt.fine_tune import FineTuneConfig, fine_tune
from tchub.zoo.adapt.sampling.sampler import dissimilar
from tchub.zoo.corpus import Corpus, sequence_of, usable_programs
from tchub.zoo.features import get_schema
from tchub.zoo.training.dataset import RankingDataset

EPSILON = 0.05
# Fasor's: tasks that are measured first, programs of each, and decisions that are searched.
FEW_SHOT_TASKS, FEW_SHOT_PROGRAMS, SEARCHED = 10, 4, 7
# Share of the rounds that keep to the subspace.
FOCUSED = 0.8
# A recorded program that is so many doublings from a schedule that was carried over stands for it.
STANDS_FOR = 4.0


@dataclass(frozen=True)
class System:
    """What picks the next program.

    Attributes:
        model: `random`, `xgb` (boosted trees of what was measured, as stock MetaSchedule's) or `tilenet`.
        database: begin with a schedule of the most similar tasks of other networks, where one like it was recorded.
        few_shot: measure the least similar tasks first and fine-tune once on them.
        subspace: search the most sensitive decisions alone, the others as the database has them; a fifth of the picks
            is free of that.
    """

    model: str = "tilenet"
    database: bool = False
    few_shot: bool = False
    subspace: bool = False


@dataclass(frozen=True)
class Space:
    """The recorded programs of a task.

    Attributes:
        features: (n, rows, width) of the checkpoint's schema; latency: (n,) seconds.
        kernels, decisions: of each program.
    """

    task_id: str
    flops: float
    features: np.ndarray
    latency: np.ndarray
    kernels: tuple[str, ...]
    decisions: tuple[Decisions, ...]

    @cached_property
    def classes(self) -> dict[str, tuple[int, ...]]:
        """Return the extents of the loops that programs of each kernel class tile."""
        return {kernel: extents(decisions) for kernel, decisions in zip(self.kernels, self.decisions, strict=True)}


def read_spaces(corpus: Corpus, task_ids: Sequence[str], schema_name: str) -> list[Space]:
    """Read the tasks that have enough valid programs."""
    schema, spaces = get_schema(schema_name), []
    for task_id, programs in usable_programs(corpus, task_ids).items():
        traces = [json.loads(program.trace) for program in programs]
        features = schema.extract([sequence_of(program) for program in programs])
        latency = np.array([program.latency for program in programs])
        kernels = tuple(kernel_class(trace[0]) for trace in traces)
        decisions = tuple(map(decisions_of_trace, traces))
        spaces.append(Space(task_id, corpus.tasks[task_id].flops, features, latency, kernels, decisions))
    return spaces


def apart(space: Space, index: int, kernel: str, other: Decisions, slots: Sequence[int] | None = None) -> float:
    """Return by how many doublings the tiles of a program differ from others, another choice counting as one."""
    if space.kernels[index] != kernel:
        return inf
    pairs = list(zip(space.decisions[index], other, strict=True))
    return sum(
        sum(abs(log2(x / y)) for x, y in zip(a, b, strict=True)) if isinstance(a, tuple) and isinstance(b, tuple)
        else float(a != b)
        for a, b in (pairs if slots is None else [pairs[slot] for slot in slots])
    )  # fmt: skip


def carried_over(space: Space, database: ScheduleDatabase) -> list[tuple[str, Decisions]]:
    """Return class and decisions of the most similar tasks' schedules, with their tiles rescaled, nearest first."""
    similar = [(*pair, kernel) for kernel, own in space.classes.items() for pair in database.similar(kernel, own)]
    carried = []
    for _, schedule, kernel in sorted(similar, key=lambda one: (one[0], one[1].task_id))[:SIMILAR]:
        sizes = iter(space.classes[kernel])
        tiles = (rescale(v, next(sizes)) if isinstance(v, tuple) else v for v in schedule.decisions)
        carried.append((kernel, tuple(tiles)))
    return carried


def sensitivity(spaces: Sequence[Space]) -> dict[str, np.ndarray]:
    """Return for each kernel class how much of log latency each decision alone explains, over its tasks' programs."""
    moments: dict[str, list[np.ndarray]] = {}
    for space in spaces:
        for kernel in space.classes:
            own = [i for i, name in enumerate(space.kernels) if name == kernel]
            if len(own) < 8:
                continue
            logs = np.log(space.latency[own])
            slots = range(len(space.decisions[own[0]]))
            shares = []
            for slot in slots:
                values = [space.decisions[i][slot] for i in own]
                numbers = np.array([list(map(log2, v)) if isinstance(v, tuple) else [v] for v in values], float)
                design = np.column_stack([np.ones(len(own)), numbers])
                rest = logs - design @ np.linalg.lstsq(design, logs, rcond=None)[0]
                shares.append(1 - rest.var() / logs.var() if logs.var() else 0.0)
            moments.setdefault(kernel, []).append(np.array(shares))
    return {kernel: np.mean(shares, axis=0) for kernel, shares in moments.items()}


class Replay:
    """One network, searched by one system with one seed.

    Args:
        spaces: of its tasks; weights: calls of each.
        checkpoint: a TileNet that has learnt from none of them.
        database, sensitive: of other networks' tasks.
    """

    def __init__(
        self, spaces: Sequence[Space], weights: Mapping[str, int], system: System, seed: int, checkpoint: Any,
        database: ScheduleDatabase, sensitive: Mapping[str, np.ndarray],
    ) -> None:  # fmt: skip
        self.spaces, self.system = spaces, system
        self._rng = np.random.default_rng(seed)
        self._seed = seed
        self._checkpoint = checkpoint
        self._scorer = PretrainedScorer(checkpoint, "context")
        self._weights = np.array([float(weights[space.task_id]) for space in spaces])
        self._best = np.array([float(np.median(space.latency)) for space in spaces])  # as a random pick
        self._measured: list[list[int]] = [[] for _ in spaces]
        self._trees: Any = None
        wanted = system.database or system.subspace
        self._carried = [carried_over(space, database) if wanted else [] for space in spaces]
        self._sensitive = sensitive

    def curve(self, budget: int) -> list[float]:
        """Return the network's latency in seconds after each measurement, none at first."""
        return [float(self._weights @ self._best), *self._points(budget)]

    def _points(self, budget: int) -> Iterator[float]:
        progress = [
            TaskProgress(weight, cost=space.flops, cheap_search=True)
            for weight, space in zip(self._weights, self.spaces, strict=True)
        ]
        spent = 0
        for index in self._signature() if self.system.few_shot else ():
            yield from self._measure(progress, index, self._rng.permutation(self._left(index))[:FEW_SHOT_PROGRAMS])
            spent += len(self._measured[index])
        if self.system.few_shot:
            self._fine_tune()
        batch = batch_size(budget, progress)
        while spent < budget:
            chosen = next_round(progress, batch, 8)
            if not chosen:
                return
            for index, count in chosen:
                picks = self._pick(index, min(count, budget - spent))
                progress[index].exhausted = len(self._left(index)) <= len(picks)
                yield from self._measure(progress, index, picks)
                spent += len(picks)
            self._learn()

    def _measure(self, progress: Sequence[TaskProgress], index: int, picks: Sequence[int]) -> Iterator[float]:
        space, latencies = self.spaces[index], [float(self.spaces[index].latency[i]) for i in picks]
        for pick, latency in zip(picks, latencies, strict=True):
            first = not self._measured[index]
            self._measured[index].append(int(pick))
            self._best[index] = latency if first else min(self._best[index], latency)
            yield float(self._weights @ self._best)
        if len(picks):
            progress[index].record(latencies)
            self._scorer.observe(space.task_id, space.features[list(picks)], latencies)

    def _left(self, index: int) -> list[int]:
        return [i for i in range(len(self.spaces[index].latency)) if i not in set(self._measured[index])]

    # Picking ---------------------------------------------------------------------------------------------

    def _pick(self, index: int, count: int) -> list[int]:
        """Return the next programs of a task."""
        space, left = self.spaces[index], self._left(index)
        order = [left[i] for i in np.argsort(-self._scores(space, left), kind="stable")]
        carried = self._carried[index]
        if carried and self.system.subspace and self._rng.random() < FOCUSED:
            kernel, decisions = carried[0]
            weights = self._sensitive.get(kernel, np.zeros(len(decisions)))
            fixed = np.argsort(-weights, kind="stable")[SEARCHED:].tolist()
            off = {i: apart(space, i, kernel, decisions, fixed) for i in left}
            near = set(sorted(left, key=off.__getitem__)[: -(-len(left) // 2)])
            order.sort(key=lambda i: i not in near)
        if self.system.database and not self._measured[index]:
            stand_ins = {i for one in carried for i in left if apart(space, i, *one) <= STANDS_FOR}
            order.sort(key=lambda i: i not in stand_ins)
        for first in range(min(count, len(order))):
            if self._rng.random() < EPSILON:
                other = int(self._rng.integers(first, len(order)))
                order[first], order[other] = order[other], order[first]
        return order[:count]

    def _scores(self, space: Space, left: Sequence[int]) -> np.ndarray:
        features = space.features[list(left)]
        if self.system.model == "tilenet":
            return self._scorer.predict(space.task_id, features)
        if self._trees is None:
            return self._rng.random(len(left))
        return self._trees.predict(features.reshape(len(left), -1))

    # Learning --------------------------------------------------------------------------------------------

    def _learn(self) -> None:
        """Fit boosted trees to all that was measured: the best latency of the task over the program's."""
        if self.system.model != "xgb":
            return
        from xgboost import XGBRegressor

        data = self._data()
        best = np.full(len(self.spaces), inf)
        np.minimum.at(best, data.group, data.latency)
        self._trees = XGBRegressor(n_estimators=50, max_depth=6, learning_rate=0.2, n_jobs=1, random_state=self._seed)
        self._trees.fit(data.features.reshape(len(data), -1), best[data.group] / data.latency)

    def _signature(self) -> list[int]:
        """Return the tasks that are the least alike."""
        rows = np.stack([space.features.reshape(len(space.latency), -1).mean(axis=0) for space in self.spaces])
        rows = rows[:, np.ptp(rows, axis=0) > 0]
        return dissimilar((rows - rows.mean(axis=0)) / rows.std(axis=0))[:FEW_SHOT_TASKS].tolist()

    def _fine_tune(self) -> None:
        model = fine_tune(self._checkpoint.model, self._data(), FineTuneConfig(seed=self._seed)).model
        self._scorer = PretrainedScorer(replace(self._checkpoint, model=model), "context")
        for space, own in zip(self.spaces, self._measured, strict=True):
            if own:
                self._scorer.observe(space.task_id, space.features[own], space.latency[own].tolist())

    def _data(self) -> RankingDataset:
        pairs = [(number, i) for number, own in enumerate(self._measured) for i in own]
        features = np.stack([self.spaces[number].features[i] for number, i in pairs])
        latency = np.array([self.spaces[number].latency[i] for number, i in pairs])
        group = np.array([number for number, _ in pairs])
        names = tuple(space.task_id for space in self.spaces)
        return RankingDataset(features, latency, group, names, np.ones(len(names)))
