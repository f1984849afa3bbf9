"""Searches whose programs are looked up: a design space that consists of measured programs, and `tune`'s search there.

TVM is not asked, so that a round takes milliseconds. A search can only find what was measured: it begins with the
programs that are nearest to the schedules of similar tasks.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from math import ceil, exp, inf, isfinite, log2
from operator import contains
from random import Random
from typing import Any

import numpy as np
import tvm
from tchub.hub.search.decision_search import SIMILAR, DecisionSearch, Key, ProgramPool, _Replay
from tchub.hub.search.design_slots import ChoiceSlot, rescale
from tchub.hub.search.design_space import Decisions, DesignSpace, _identity, decisions_of_trace, kernel_class
from tchub.hub.search.dqn import DQNSearch
from tchub.hub.search.interrupt import StopFlag
from tchub.hub.search.settings import DecisionSettings, DQNSettings
from tchub.zoo.corpus import Corpus
from tchub.zoo.primitives.metaschedule import Template
from tchub.zoo.primitives.scope import Decision

# Share of the decisions with several answers that a subspace searches: Fasor's 7 are half of its spaces'.
SEARCHED = 0.5
# Of the annealing, in units of score: at first, and what is left of it after a step.
TEMPERATURE, COOLING = 0.1, 0.94
STEPS = 64


class GridSlot(ChoiceSlot):
    """A sampling instruction that has some of its answers only."""

    def adjacent(self, value: Decision) -> Iterator[Decision]:
        """Yield the answers that are the nearest, and those of which one prime factor moved."""
        off = {other: apart(value, other) for other in self.values if other != value}
        nearest = max(2.0, min(off.values(), default=0.0)) if isinstance(value, tuple) else min(off.values(), default=0)
        yield from (other for other, distance in off.items() if distance <= nearest)


def apart(one: Decision, other: Decision) -> float:
    """Return by how many doublings two tiles differ, or how far two choices are apart."""
    if isinstance(one, tuple) and isinstance(other, tuple):
        return sum(abs(log2(x / y)) for x, y in zip(one, other, strict=True))
    return abs(one - other) if isinstance(one, int) and isinstance(other, int) else inf


@dataclass
class RecordedSpace:
    """The programs of a design space.

    Attributes:
        instructions: of its programs.
        latencies: seconds of each, infinite where it failed.
        nearest: the program next to the decisions of another task, where it was looked for.
    """

    instructions: list[Any]
    latencies: dict[Decisions, float] = field(default_factory=dict)
    nearest: dict[Decisions, Decisions] = field(default_factory=dict)


class MeasuredSpace(DesignSpace):
    """A design space that consists of its measured programs; TVM is not asked."""

    def __init__(self, recorded: RecordedSpace) -> None:
        self.kernel, self.template = kernel_class(recorded.instructions), Template(recorded.instructions)
        self._recorded, self._latencies = recorded, recorded.latencies
        self._original = next(iter(self._latencies))
        self._all = tuple(GridSlot(tuple(dict.fromkeys(column))) for column in zip(*self._latencies, strict=True))
        self.widen()

    def widen(self) -> None:
        """Let each decision have all its answers."""
        self._have(self._all)

    def narrow(self, decisions: Decisions, shares: np.ndarray) -> None:
        """Let half of the decisions that vary, those of the highest shares, have all answers, others a program's."""
        varying = [number for number, slot in enumerate(self._all) if slot.choices > 1]
        count = ceil(SEARCHED * len(varying))
        searched = sorted(varying, key=lambda number: -shares[number])[:count]
        slots = enumerate(zip(self._all, decisions, strict=True))
        self._have(tuple(slot if number in searched else GridSlot((value,)) for number, (slot, value) in slots))

    def _have(self, slots: tuple[GridSlot, ...]) -> None:
        self.__dict__["slots"] = slots
        numbers = [number for number, slot in enumerate(slots) if slot.choices > 1]
        weights = (10 if isinstance(slots[number].values[0], tuple) else 1 for number in numbers)
        self.__dict__["_varied"] = numbers, list(accumulate(weights))  # as `DesignSpace` weighs tiles

    def random(self, rng: Random, count: int) -> list[Decisions]:
        """Return random programs of the space, or of what it is narrowed to."""
        slots: Any = self.slots
        own = [one for one in self._latencies if all(map(contains, (slot.values for slot in slots), one))]
        return rng.sample(own, min(count, len(own)))

    def fits(self, decisions: Decisions) -> bool:
        """Return whether a program was measured: others are refused by TVM, or by the device."""
        return decisions in self._latencies

    def carry_over(self, decisions: Decisions) -> Decisions:
        """Return the measured program that is nearest to the schedule of a similar task, its tiles rescaled."""
        known = self._recorded.nearest
        if decisions not in known:
            sizes = iter(self.extents)
            wanted = [rescale(value, next(sizes)) if isinstance(value, tuple) else value for value in decisions]
            known[decisions] = min(self._latencies, key=lambda one: sum(map(apart, one, wanted)))
        return known[decisions]


@dataclass
class MeasuredTask:
    """A task with all its programs.

    Attributes:
        mod: the unscheduled module; seconds: of building and running a program, by its key.
    """

    task_id: str
    flops: float
    mod: Any
    spaces: list[RecordedSpace]
    seconds: dict[Key, float]

    def latency(self, key: Key) -> float:
        """Return the latency of a program in seconds; infinite where it failed."""
        return self.spaces[key[0]].latencies[key[1]]

    @cached_property
    def best(self) -> float:
        """Return the latency of the fastest program in seconds."""
        return min(min(space.latencies.values()) for space in self.spaces)

    @cached_property
    def median(self) -> float:
        """Return the median latency of the programs in seconds, without those that failed."""
        return float(np.median([x for space in self.spaces for x in space.latencies.values() if isfinite(x)]))


def read_tasks(corpus: Corpus) -> list[MeasuredTask]:
    """Read the tasks of a corpus of whole spaces, without the programs that lie outside of a grid."""
    tasks = []
    for task_id, task in corpus.tasks.items():
        by_space: dict[str, list[tuple[list[Any], Decisions, Any]]] = {}
        for program in corpus.programs(task_id):
            trace = json.loads(program.trace)
            by_space.setdefault(_identity(trace[0]), []).append((trace[0], decisions_of_trace(trace), program))
        spaces, seconds = list[RecordedSpace](), dict[Key, float]()
        for rows in by_space.values():
            whole = [decisions for _, decisions, program in rows if program.strategy != "random"]
            columns = [set(column) for column in zip(*whole, strict=True)]
            space = RecordedSpace(rows[0][0])
            for _, decisions, program in rows:
                if columns and all(map(contains, columns, decisions)):
                    space.latencies[decisions] = program.latency if program.valid else inf
                    seconds[len(spaces), decisions] = program.cost_seconds
            if space.latencies:
                spaces.append(space)
        tasks.append(MeasuredTask(task_id, task.flops, tvm.ir.load_json(task.workload), spaces, seconds))
    return tasks


class LookedUpSearch(DecisionSearch):
    """`tune`'s search of a task whose programs are looked up; a candidate is the key of a program."""

    def __init__(self, task: MeasuredTask, settings: DecisionSettings, seed: int, batch: int, model: Any) -> None:
        super().__init__(task.mod, [], [], settings, seed)
        self.spaces, self._batch, self._model = [MeasuredSpace(space) for space in task.spaces], batch, model
        self._listed = False

    def _scheduled(self, key: Key) -> Any | None:
        return key

    def _replay(self, key: Key, candidate: Any | None, score: float, given: bool) -> _Replay | None:
        self._tried.add(self._shared(key))
        return None if key in self.latencies else _Replay(key, key, key, hash(key), score, given)

    def narrow(self, sensitive: Mapping[str, np.ndarray] | np.random.Generator | None) -> None:
        """Search the most sensitive decisions alone, or as many random ones; the others are as those carried over.

        Args:
            sensitive: shares of each kernel class; a generator draws them; None: search all decisions.
        """
        for number, space in enumerate(self.spaces):
            measured: Any = space
            own = next((decisions for n, decisions in self.carried if n == number), None)
            if own is None or sensitive is None:
                measured.widen()
            elif isinstance(sensitive, np.random.Generator):
                measured.narrow(own, sensitive.random(len(own)))
            else:
                measured.narrow(own, sensitive.get(space.kernel, np.zeros(len(own))))


class AnnealingSearch(LookedUpSearch):
    """Simulated annealing from the starts of the DQN: the ablation of Fasor's section 8.5.3."""

    def _bred(self, stop: StopFlag) -> ProgramPool:
        settings, seen = DQNSettings(), set[Key]()
        pool = self._scored([*self.carried[:SIMILAR], *self._drawn(settings.drawn)], seen)
        known = self._pool(key for key, latency in self.latencies.items() if isfinite(latency))
        scores = dict(zip((*pool.keys, *known.keys), (*pool.scores, *known.scores), strict=True))
        places = sorted(scores, key=scores.__getitem__, reverse=True)[: settings.walkers]
        temperature = TEMPERATURE
        for _ in range(STEPS):
            offers = []
            for number, decisions in places:
                moves = [(number, moved) for moved in self.spaces[number].adjacent(decisions)]
                moves = [
                    move
                    for move in moves
                    if move not in seen and move not in offers and isfinite(self.latencies.get(move, 0.0))
                ]
                offers.append(self._rng.choice(moves) if moves else (number, decisions))
            new = self._scored(offers, seen)
            scores |= dict(zip(new.keys, new.scores, strict=True))
            for walker, (place, offer) in enumerate(zip(places, offers, strict=True)):
                if offer in scores and self._rng.random() < exp(-max(0.0, scores[place] - scores[offer]) / temperature):
                    places[walker] = offer
            pool, temperature = pool + new, temperature * COOLING
        return pool


class WalkedSearch(DQNSearch, LookedUpSearch):
    """Fasor's DQN on a measured space."""


SEARCHES: dict[str, type[Any]] = {"bred": LookedUpSearch, "annealing": AnnealingSearch, "dqn": WalkedSearch}
