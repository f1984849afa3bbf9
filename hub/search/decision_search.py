"""Search in decision space: programs drawn, varied and ranked by the checkpoint without TVM.

The first batch of a task is the checkpoint's choice among some two thousand, before anything was measured; later
ones also look around the best measured programs. Only what is to be measured is replayed by TVM.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf, isfinite
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
from tvm_ffi import structural_hash

from ...zoo.primitives.scope import Decision
from ..device.candidate import trace_json
from ..records.records import FAILED_SECONDS, programs_of
from .candidates import tune_context, untuned_candidate
from .decision_pool import DecisionSettings, Key, Pool, spread_out
from .design_space import Decisions, DesignSpace
from .errors import InterruptedRunError, NoCandidateError
from .interrupt import StopFlag

if TYPE_CHECKING:
    from ..networks.tasks import TuningTask
    from ..records.history import KnownProgram


@dataclass(frozen=True)
class _Replayed:
    """A valid program.

    Attributes:
        candidate: as TVM made it.
        asked, key: what was to be decided, and what was: TVM moves decisions that others made invalid.
        module: hash of the scheduled module.
        score: of what was decided.
        at_random: whether chance chose it.
    """

    candidate: Any
    asked: Key
    key: Key
    module: int
    score: float
    at_random: bool


class DecisionSearch:
    """Candidates of one task, ranked by a checkpoint that reads primitives.

    Args:
        task: the task.
        target: a `tvm.target.Target`.
        settings: of the search.
        seed: of the search; equal seeds and measurements give equal candidates.

    Attributes:
        fixed: whether the task has one program only.
        cheap: a round of one program costs a fraction of its measurement.
        waiting: scores of the best programs that the last round left, best first.

    Raises:
        NoCandidateError: the task has no valid program on this target.
    """

    cheap = True

    def __init__(self, task: TuningTask, target: Any, settings: DecisionSettings, seed: int) -> None:
        from tvm.s_tir import meta_schedule as ms

        self.task = task
        self.settings = settings
        self.context = tune_context(task, target, ms.search_strategy.ReplayTrace(), seed, 1)
        schedules = self.context.generate_design_space()
        if not schedules:
            raise NoCandidateError(
                f"task {task.name} has no valid program on this target",
                remedy="check the target's limits",
                task=task.name,
            )
        self._rng = Random(seed)
        self.spaces = [DesignSpace(task.mod, self.context, schedule, seed) for schedule in schedules]
        self.fixed = len(self.spaces) == 1 and not self.spaces[0].template.samplers
        self.latencies: dict[Key, float] = {}
        self._tried: set[Key] = set()
        self._values: dict[Decision, Decision] = {}
        self._modules: set[int] = set()
        self.waiting: tuple[float, ...] = ()
        self._batch = 1

    # What the session asks for ---------------------------------------------------------------------------

    def start(self, trials: int, batch: int, database: Any, model: Any) -> None:
        """Begin: programs of `database` are known, and parents."""
        self._batch, self._model = batch, model
        for trace, times in programs_of(database, self.task.mod):
            seconds = min(times, default=inf)
            self.know(trace, seconds if seconds < FAILED_SECONDS else inf)

    def know(self, trace: Sequence[Any], latency: float) -> None:
        """A program `[instructions, decisions]` that was measured already: a parent, and not to be measured again.

        Args:
            latency: in seconds; infinite when it failed.
        """
        for number, space in enumerate(self.spaces):
            decisions = space.read(trace)
            if decisions is not None:
                self.latencies[self._shared((number, decisions))] = latency

    def teach(self, programs: Sequence[KnownProgram]) -> int:
        """Take programs of earlier runs as parents and show them to the model; returns how many are of this task."""
        taught: dict[int, list[tuple[Decisions, float]]] = {}
        for program in programs:
            for number, space in enumerate(self.spaces):
                decisions = space.read(program.trace)
                if decisions is not None and (number, decisions) not in self.latencies:
                    self.latencies[self._shared((number, decisions))] = program.latency
                    taught.setdefault(number, []).append((decisions, program.latency))
        for number, pairs in taught.items():
            features = self._model.features_of(self.spaces[number].template, [decisions for decisions, _ in pairs])
            self._model.observe(self.context, features, [latency for _, latency in pairs])
        return sum(map(len, taught.values()))

    def candidates(self, limit: int, stop: StopFlag) -> list[Any]:
        """At most `limit` new candidates, best first; empty when the search has nothing new.

        Raises:
            InterruptedRunError: the user asked to stop while the search ran.
        """
        wanted = min(limit, self._batch)
        pool = self._bred(stop)
        found: list[_Replayed] = []
        for place, at_random in self._ordered(pool, wanted):
            _check(stop)
            # A program whose decisions TVM moved may be worth less than it seemed: go on while others seem better.
            if sum(r.at_random or r.score >= pool.scores[place] for r in found) >= wanted:
                break
            replayed = self._replayed(pool.keys[place], float(pool.scores[place]), at_random)
            if replayed is not None:
                found.append(replayed)
        found.sort(key=lambda r: (not r.at_random, -r.score))
        for spare in found[wanted:]:  # another round may offer it
            self._tried.discard(spare.asked)
            self._modules.discard(spare.module)
        left = [score for key, score in zip(pool.keys, pool.scores, strict=True) if key not in self._tried]
        self.waiting = tuple(sorted(map(float, left), reverse=True)[:wanted])
        return [self._offered(r) for r in found[:wanted]]

    def notify(self, candidates: Sequence[Any], results: Sequence[Any]) -> None:
        """Learn what the candidates were worth."""
        for candidate, result in zip(candidates, results, strict=True):
            valid = result.error_msg is None and result.run_secs
            self.latencies[self._key(candidate)] = min(map(float, result.run_secs)) if valid else inf

    def untuned(self) -> Any:
        """The task as extracted, as a candidate."""
        return untuned_candidate(self.task)

    # Breeding --------------------------------------------------------------------------------------------

    def _bred(self, stop: StopFlag) -> Pool:
        """All programs that this round looked at."""
        options = self.settings
        pool = self._scored(self._drawn(options.random), set())
        seen = set(pool.keys)
        fastest = sorted((x, key) for key, x in self.latencies.items() if isfinite(x))
        parents = [key for _, key in fastest[: max(1, options.parents // 4)]]
        if parents:
            pool += self._scored(self._children(parents, options.children), seen)
        generations = options.generations if parents else min(options.blind, options.generations)
        for _ in range(generations if pool.keys else 0):
            _check(stop)
            best = np.argsort(-pool.scores, kind="stable")[: options.parents]
            pool += self._scored(self._children([pool.keys[i] for i in best], options.children), seen)
        return pool

    def _drawn(self, count: int) -> list[Key]:
        """Random programs, each design space in turn, as often as TVM's own search would."""
        share = -(-count // len(self.spaces))
        return [(i, d) for i, space in enumerate(self.spaces) for d in space.random(self._rng, share)]

    def _children(self, parents: Sequence[Key], count: int) -> list[Key]:
        rng, found = self._rng, []
        for _ in range(count):
            number, decisions = rng.choice(parents)
            space = self.spaces[number]
            if rng.random() >= self.settings.mutations:
                other = rng.choice([d for n, d in parents if n == number])
                decisions = space.cross(decisions, other, rng)
            found.append((number, space.mutate(decisions, rng)))
        return found

    def _scored(self, keys: Iterable[Key], seen: set[Key]) -> Pool:
        """New programs among `keys`, which are added to `seen`, with features and scores."""
        fresh = []
        for key in keys:
            if key not in seen and key not in self.latencies and key not in self._tried:
                seen.add(key)
                fresh.append(key)
        fresh.sort(key=lambda key: key[0])  # features are made space by space
        parts = []
        for number, space in enumerate(self.spaces):
            decisions = [d for n, d in fresh if n == number]
            if decisions:
                parts.append(self._model.features_of(space.template, decisions))
        if not fresh:
            return Pool([], np.zeros((0, 1, 1), np.float32), np.zeros(0))
        features = np.concatenate(parts)
        return Pool(fresh, features, self._model.score(self.context, features))

    # Choosing --------------------------------------------------------------------------------------------

    def _ordered(self, pool: Pool, wanted: int) -> Iterator[tuple[int, bool]]:
        """Places of programs in the order in which they should be replayed, and whether chance chose them."""
        lucky = sum(self._rng.random() < self.settings.epsilon for _ in range(wanted))
        dealt = set(self._rng.sample(range(len(pool.keys)), min(lucky, len(pool.keys))))
        yield from ((place, True) for place in sorted(dealt))
        order = spread_out(pool, self.settings.apart, self._rng)
        rest = (place for place in order if place not in dealt)
        yield from ((place, False) for place in islice(rest, self.settings.attempts * wanted))

    def _replayed(self, key: Key, score: float, at_random: bool) -> _Replayed | None:
        """The candidate of a program, None when it is invalid or, once TVM moved its decisions, known."""
        number, decisions = key
        space = self.spaces[number]
        candidate = space.replay(decisions)
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
            score = float(self._model.score(self.context, features)[0])
        return _Replayed(candidate, key, actual, module, score, at_random)

    def _offered(self, replayed: _Replayed) -> Any:
        # Known from here on, not after the measurement alone: an interrupted batch is not offered twice.
        self.latencies[self._shared(replayed.key)] = inf
        self._tried.discard(replayed.key)
        return replayed.candidate

    def _shared(self, key: Key) -> Key:
        """An equal key to keep: programs by the thousand differ in few values, each of which is held once."""
        number, decisions = key
        return number, tuple(self._values.setdefault(value, value) for value in decisions)

    def _key(self, candidate: Any) -> Key:
        trace = trace_json(candidate.sch.trace)
        return next((n, d) for n, space in enumerate(self.spaces) if (d := space.read(trace)) is not None)


def _check(stop: StopFlag) -> None:
    if stop.requested:
        raise InterruptedRunError("interrupted while searching")
