"""Search in decision space: programs drawn, varied and ranked by the checkpoint without TVM.

The first batch of a task is the checkpoint's choice among some two thousand, before anything was measured; later
ones also look around the best measured programs, and a part of each is next to the fastest one. TVM replays only the
programs to be measured.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from math import inf, isfinite
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
from tvm_ffi import structural_hash

from ...zoo.primitives.scope import Decision
from ..device.candidate import trace_json
from ..device.extensions import vector_registers
from ..records.database import programs_of
from .candidates import map_ahead
from .design_space import Decisions, DesignSpace
from .interrupt import StopFlag
from .settings import DecisionSettings

if TYPE_CHECKING:
    from tvm import IRModule

    from ..records.store import MeasuredProgram
    from .schedules import ScheduleDatabase

# Programs of the most similar tasks among which the model chooses the first one of a task.
SIMILAR = 6

Key = tuple[int, Decisions]
"""A program of a task: the number of its design space, and its decisions."""


@dataclass
class ProgramPool:
    """Programs of one round with their features and scores."""

    keys: list[Key]
    features: np.ndarray
    scores: np.ndarray

    def __add__(self, other: ProgramPool) -> ProgramPool:
        if not self.keys or not other.keys:
            return self if self.keys else other
        features = np.concatenate([self.features, other.features])
        return ProgramPool(self.keys + other.keys, features, np.concatenate([self.scores, other.scores]))


def spread_out(pool: ProgramPool, share: float, rng: Random) -> Iterator[int]:
    """Yield indices of programs best first; those too near to an earlier one follow when nothing else is left.

    Args:
        share: least distance, as a share of the median distance between random programs of the pool.
    """
    if not pool.keys:
        return
    flat = pool.features.reshape(len(pool.keys), -1).astype(np.float64)
    spread = flat.std(axis=0)
    points = flat[:, spread > 0] / spread[spread > 0]
    pairs = [rng.sample(range(len(points)), 2) for _ in range(64)] if len(points) > 1 else []
    median = float(np.median([np.linalg.norm(points[a] - points[b]) for a, b in pairs])) if pairs else 0.0
    taken: list[int] = []
    near: list[int] = []
    for i in map(int, np.argsort(-pool.scores, kind="stable")):
        if taken and np.linalg.norm(points[taken] - points[i], axis=1).min() <= share * median:
            near.append(i)
            continue
        taken.append(i)
        yield i
    yield from near


@dataclass(frozen=True)
class _Replay:
    """A valid program in TVM.

    Attributes:
        candidate: MetaSchedule's.
        asked, key: the decisions given and those that TVM took: it moves decisions that others made invalid.
        module: hash of the scheduled module.
        score: of `key`.
        given: True where its score does not decide: chance chose it, or a similar task.
    """

    candidate: Any
    asked: Key
    key: Key
    module: int
    score: float
    given: bool


class DecisionSearch:
    """Candidates of one task, ranked by a checkpoint that reads primitives or loop nests.

    Args:
        mod: the task's unscheduled module.
        schedules: its design spaces, at least one.
        postprocs: MetaSchedule's postprocessors for its target.
        settings: of the search.
        seed: of the search; equal seeds and measurements give equal candidates.
        target: of the programs; None: their tiles may be of any size.

    Attributes:
        fixed: True for a task of one program.
        cheap: a round of one program costs a fraction of its measurement.
        waiting: scores of the best programs that the last round left, best first.
        carried: the programs of similar tasks, the most similar first, which count until one of the task's own ran.
    """

    cheap = True

    def __init__(
        self,
        mod: IRModule,
        schedules: Sequence[Any],
        postprocs: Sequence[Any],
        settings: DecisionSettings,
        seed: int,
        target: Any = None,
    ) -> None:
        self.mod, self.target = mod, target
        self.settings, self.seed = settings, seed
        self._rng = Random(seed)
        registers = None if target is None else vector_registers(target)
        self.spaces = [DesignSpace(mod, postprocs, schedule, seed, registers) for schedule in schedules]
        # Spaces of one program each are in the order in which to try them, as their rule gives them.
        self._listed = not any(space.template.samplers for space in self.spaces)
        self.fixed = len(self.spaces) == 1 and self._listed
        self.latencies: dict[Key, float] = {}
        self._tried: set[Key] = set()
        self._values: dict[Decision, Decision] = {}
        self._modules: set[int] = set()
        self.waiting: tuple[float, ...] = ()
        self._batch = 1
        # A card's programs are checked for its limits, 60 ms each, and no program is timed on the CPU meanwhile.
        self._on_card = target is not None and target.kind.name == "cuda"
        self.carried: list[Key] = []

    # What the session asks for ---------------------------------------------------------------------------

    def start(self, trials: int, batch: int, database: Any, model: Any) -> None:
        """Begin: programs of `database` are known, and parents.

        Args:
            batch: programs of a round at most.
            model: scores programs by their decisions, see `PretrainedCostModel`.
        """
        self._batch, self._model = batch, model
        for trace, times in programs_of(database, self.mod):
            self.know(trace, min(times, default=inf))

    def know(self, trace: Sequence[Any], latency: float) -> None:
        """Take a program `[instructions, decisions]` that was measured already as a parent; it is not measured again.

        Args:
            latency: in seconds; infinite when it failed.
        """
        for number, space in enumerate(self.spaces):
            decisions = space.read(trace)
            if decisions is not None:
                self.latencies[self._shared((number, decisions))] = latency

    def teach(self, programs: Sequence[MeasuredProgram]) -> int:
        """Take programs of earlier runs as parents and show them to the model; returns how many are of this task."""
        new: dict[int, list[tuple[Decisions, float]]] = {}
        for program in programs:
            trace = json.loads(program.trace)
            for number, space in enumerate(self.spaces):
                decisions = space.read(trace)
                if decisions is not None and (number, decisions) not in self.latencies:
                    self.latencies[self._shared((number, decisions))] = program.latency
                    new.setdefault(number, []).append((decisions, program.latency))
        for number, pairs in new.items():
            features = self._model.features_of(self.spaces[number].template, [decisions for decisions, _ in pairs])
            self._model.observe(self.mod, features, [latency for _, latency in pairs])
        return sum(map(len, new.values()))

    def suggest(self, schedules: ScheduleDatabase) -> None:
        """Look at the schedules of similar tasks, with their tiles rescaled, before anything was measured."""
        pairs = [
            (distance, (number, space.carry_over(schedule.decisions)))
            for number, space in enumerate(self.spaces)
            for distance, schedule in schedules.similar(space.kernel, space.extents)
        ]
        self.carried = list(dict.fromkeys(self._shared(key) for _, key in sorted(pairs, key=lambda pair: pair[0])))

    def unmeasured(self) -> list[Any]:
        """Return the program to take where none is measured, as a list of one candidate, or of none.

        It is the one of a similar task that the model likes best, or the first of a list.
        """
        if self._listed:
            pool = self._scored([(number, ()) for number in range(len(self.spaces))], set())
            return self._liked(ProgramPool(pool.keys, pool.features, -np.arange(len(pool.keys), dtype=float)))
        return self._liked(self._scored(self.carried[:SIMILAR], set()))

    def _liked(self, pool: ProgramPool) -> list[Any]:
        """Return the valid program of the highest score, as a list of one candidate, or of none."""
        for index in np.argsort(-pool.scores, kind="stable"):
            scheduled = self._scheduled(pool.keys[index])
            if (replay := self._replay(pool.keys[index], scheduled, float(pool.scores[index]), True)) is not None:
                return [self._offered(replay)]
        return []

    def candidates(self, limit: int, stop: StopFlag) -> list[Any]:
        """Return at most `limit` new candidates, best first; none when the search has nothing new.

        Raises:
            InterruptedRunError: the user asked to stop while the search ran.
        """
        wanted = min(limit, self._batch)
        pool = self._bred(stop)
        chosen: list[_Replay] = []
        order = self._ordered(pool, wanted)
        replays = map_ahead(
            lambda item: self._scheduled(pool.keys[item[0]]),
            order,
            lambda: wanted - len(chosen) if self._on_card else 0,
        )
        with closing(replays):
            for (index, given), scheduled in replays:
                stop.check("interrupted while searching")
                # A program whose decisions TVM moved may be worth less than it seemed: go on while others seem better.
                if sum(r.given or r.score >= pool.scores[index] for r in chosen) >= wanted:
                    break
                replay = self._replay(pool.keys[index], scheduled, float(pool.scores[index]), given)
                if replay is not None:
                    chosen.append(replay)
        chosen.sort(key=lambda r: (not r.given, -r.score))
        for spare in chosen[wanted:]:  # another round may offer it
            self._tried.discard(spare.asked)
            self._modules.discard(spare.module)
        left = [score for key, score in zip(pool.keys, pool.scores, strict=True) if key not in self._tried]
        self.waiting = tuple(sorted(map(float, left), reverse=True)[:wanted])
        return [self._offered(r) for r in chosen[:wanted]]

    def notify(self, candidates: Sequence[Any], results: Sequence[Any]) -> None:
        """Learn the results of candidates."""
        for candidate, result in zip(candidates, results, strict=True):
            valid = result.error_msg is None and result.run_secs
            self.latencies[self._key(candidate)] = min(map(float, result.run_secs)) if valid else inf

    # Breeding --------------------------------------------------------------------------------------------

    def _bred(self, stop: StopFlag) -> ProgramPool:
        """Return all programs that this round looks at."""
        options = self.settings
        pool = self._scored(self._drawn(options.random), set())
        seen = set(pool.keys)
        fastest = sorted((x, key) for key, x in self.latencies.items() if isfinite(x))
        parents = [key for _, key in fastest[: max(1, options.parents // 4)]]
        pool += self._scored(self.carried, seen)
        if parents:
            pool += self._scored(self._steps(parents[0]), seen)
            pool += self._scored(self._children(parents, options.children), seen)
        generations = options.generations if parents else min(options.blind, options.generations)
        for _ in range(generations if pool.keys else 0):
            stop.check("interrupted while searching")
            best = np.argsort(-pool.scores, kind="stable")[: options.parents]
            pool += self._scored(self._children([pool.keys[i] for i in best], options.children), seen)
        return pool

    def _drawn(self, count: int) -> list[Key]:
        """Draw random programs, each design space in turn, as often as TVM's own search would."""
        share = -(-count // len(self.spaces))
        return [(i, d) for i, space in enumerate(self.spaces) for d in space.random(self._rng, share)]

    def _steps(self, key: Key) -> list[Key]:
        """Return the programs that are one step away from another."""
        number, decisions = key
        return [(number, moved) for moved in self.spaces[number].adjacent(decisions)]

    def _children(self, parents: Sequence[Key], count: int) -> list[Key]:
        rng, children = self._rng, []
        for _ in range(count):
            number, decisions = rng.choice(parents)
            space = self.spaces[number]
            if rng.random() >= self.settings.mutations:
                other = rng.choice([d for n, d in parents if n == number])
                decisions = space.cross(decisions, other, rng)
            children.append((number, space.mutate(decisions, rng)))
        return children

    def _scored(self, keys: Iterable[Key], seen: set[Key]) -> ProgramPool:
        """Return the new programs of `keys`, which are added to `seen`, with features and scores."""
        fresh = []
        for key in keys:
            if key not in seen and key not in self.latencies and key not in self._tried:
                seen.add(key)
                if self.spaces[key[0]].fits(key[1]):
                    fresh.append(key)
        return self._pool(fresh)

    def _pool(self, programs: Iterable[Key]) -> ProgramPool:
        """Return programs with features and scores, one design space after the other."""
        keys = sorted(programs, key=lambda key: key[0])  # features are made space by space
        parts = []
        for number, space in enumerate(self.spaces):
            decisions = [d for n, d in keys if n == number]
            if decisions:
                parts.append(self._model.features_of(space.template, decisions))
        if not keys:
            return ProgramPool([], np.zeros((0, 1, 1), np.float32), np.zeros(0))
        features = np.concatenate(parts)
        return ProgramPool(keys, features, self._model.score(self.mod, features))

    # Choosing --------------------------------------------------------------------------------------------

    def _ordered(self, pool: ProgramPool, wanted: int) -> Iterator[tuple[int, bool]]:
        """Yield indices of programs in the order in which to replay them, and True where their scores do not decide."""
        if self._listed:
            yield from ((index, True) for index in range(len(pool.keys)))
            return
        options, rng = self.settings, self._rng
        places = {key: index for index, key in enumerate(pool.keys)}
        measured = [key for key, latency in self.latencies.items() if isfinite(latency)]
        if not measured:
            similar = [places[key] for key in self.carried if key in places][:SIMILAR]
            yield from ((index, True) for index in sorted(similar, key=lambda index: -pool.scores[index]))
        lucky = sum(rng.random() < options.epsilon for _ in range(wanted))
        dealt = set(rng.sample(range(len(pool.keys)), min(lucky, len(pool.keys))))
        yield from ((index, True) for index in sorted(dealt))
        if measured:
            steps = self._steps(min(measured, key=self.latencies.__getitem__))
            beside = sorted((places[key] for key in steps if key in places), key=lambda index: -pool.scores[index])
            walks = [index for index in beside if index not in dealt][: int(options.walks * wanted + rng.random())]
            yield from ((index, True) for index in walks)
            dealt.update(walks)
        order = spread_out(pool, options.near if measured else options.apart, rng)
        rest = (index for index in order if index not in dealt)
        yield from ((index, False) for index in islice(rest, options.attempts * wanted))

    def _scheduled(self, key: Key) -> Any | None:
        """Return what TVM makes of a program, None where it is invalid."""
        return self.spaces[key[0]].replay(key[1])

    def _replay(self, key: Key, candidate: Any | None, score: float, given: bool) -> _Replay | None:
        """Return the candidate of a program, None when it is invalid or, once TVM moved its decisions, known."""
        number, _ = key
        space = self.spaces[number]
        self._tried.add(self._shared(key))
        if candidate is None:
            return None
        actual = number, space.decisions_of(candidate)
        module = structural_hash(candidate.sch.mod)
        if actual in self.latencies or module in self._modules:
            return None
        self._modules.add(module)
        if actual != key:
            features = self._model.features_of(space.template, [actual[1]])
            score = float(self._model.score(self.mod, features)[0])
        return _Replay(candidate, key, actual, module, score, given)

    def _offered(self, replay: _Replay) -> Any:
        # Known from here on, not after the measurement alone: an interrupted batch is not offered twice.
        self.latencies[self._shared(replay.key)] = inf
        self._tried.discard(replay.key)
        return replay.candidate

    def _shared(self, key: Key) -> Key:
        """Return an equal key to keep: programs by the thousand differ in few values, each of which is held once."""
        number, decisions = key
        return number, tuple(self._values.setdefault(value, value) for value in decisions)

    def _key(self, candidate: Any) -> Key:
        trace = trace_json(candidate.sch.trace)
        return next((n, d) for n, space in enumerate(self.spaces) if (d := space.read(trace)) is not None)
