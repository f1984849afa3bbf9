"""What proposes programs, compared without measuring: the best score of the checkpoint among equally many programs.

Recorded programs cannot tell proposers apart: of some 46 programs a task the checkpoint scores all at once, and an
episode of Fasor's walk is longer than that. So each proposer has the whole design spaces of a task, begins with the
schedules of the most similar ones, and is judged by what it finds for the checkpoint, which no measurement corrects.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import exp
from random import Random
from statistics import mean, stdev
from typing import Any

import numpy as np
import tvm
from tchub.hub.api import load
from tchub.hub.device.detect import detect_local
from tchub.hub.device.extensions import vector_lanes
from tchub.hub.networks.tasks import network_tasks
from tchub.hub.networks.transform.prepare import LAYOUTS, for_inference, lower
from tchub.hub.networks.workloads import load_network
from tchub.hub.search.candidates import tune_context
from tchub.hub.search.cost_model import PretrainedCostModel
from tchub.hub.search.decision_search import SIMILAR, DecisionSearch, ProgramPool
from tchub.hub.search.dqn import DQNSearch
from tchub.hub.search.interrupt import StopFlag
from tchub.hub.search.schedules import ScheduleDatabase
from tchub.hub.search.scorer import PretrainedScorer
from tchub.hub.search.settings import DecisionSettings, DQNSettings

from scripts.benchmarks.search.live import CHECKPOINT, THREADS

# Programs that are scored: those of one episode with what it begins with, and of eight.
FEW, MANY = 102, 550
DRAWN, WALKERS, STEPS = 32, 8, 64
# Of the annealing, in units of score: at first, and what is left of it after a step.
TEMPERATURE, COOLING = 0.1, 0.94
# The heaviest tasks of a network, and random programs of each that make the scale of its scores.
TASKS, SAMPLE = 3, 1024
BRED = "bred (today)"
_WALK = DQNSettings(drawn=DRAWN, walkers=WALKERS, episodes=STEPS // 8, patience=STEPS)


class AnnealingSearch(DecisionSearch):
    """Simulated annealing from the starts of the DQN: the ablation of Fasor's section 8.5.3."""

    def _bred(self, stop: StopFlag) -> ProgramPool:
        seen: set[Any] = set()
        pool = self._scored([*self.carried[:SIMILAR], *self._drawn(DRAWN)], seen)
        scores = dict(zip(pool.keys, pool.scores, strict=True))
        places = sorted(scores, key=scores.__getitem__, reverse=True)[:WALKERS]
        temperature = TEMPERATURE
        for _ in range(STEPS):
            offers = []
            for number, decisions in places:
                moves = [(number, moved) for moved in self.spaces[number].adjacent(decisions)]
                moves = [move for move in moves if move not in seen and move not in offers]
                offers.append(self._rng.choice(moves) if moves else (number, decisions))
            new = self._scored(offers, seen)
            scores |= dict(zip(new.keys, new.scores, strict=True))
            for walker, (place, offer) in enumerate(zip(places, offers, strict=True)):
                worse = max(0.0, scores[place] - scores[offer])
                if self._rng.random() < exp(-worse / temperature):
                    places[walker] = offer
            pool, temperature = pool + new, temperature * COOLING
        return pool


# What proposes: the class, and its settings for few programs and for many, where they differ.
PROPOSERS: dict[str, tuple[type[DecisionSearch], list[DecisionSettings]]] = {
    "random": (DecisionSearch, [DecisionSettings(random=MANY, blind=0)]),
    BRED: (DecisionSearch, [DecisionSettings(random=n // 2, children=n // 4, parents=n // 12) for n in (FEW, MANY)]),
    "annealing": (AnnealingSearch, [DecisionSettings()]),
    "random walk": (DQNSearch, [DecisionSettings(dqn=replace(_WALK, first_random=1.0, last_random=1.0, updates=0))]),
    "dqn": (DQNSearch, [DecisionSettings(dqn=_WALK)]),
    "dqn, no roofline": (DQNSearch, [DecisionSettings(dqn=replace(_WALK, roofline=False))]),
    "dqn, random start": (DQNSearch, [DecisionSettings(dqn=_WALK)]),
}


class Judge:
    """A checkpoint that keeps the scores it gives, and learns nothing; it stands for itself in a search.

    Scores are standard deviations above the mean of a thousand random programs of the task.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self.scores: list[float] = []

    def features_of(self, template: Any, decisions: Any) -> np.ndarray:
        return self._model.features_of(template, decisions)

    def intensity(self, template: Any, decisions: Any) -> np.ndarray | None:
        return self._model.intensity(template, decisions)

    def score(self, mod: Any, features: np.ndarray) -> np.ndarray:
        squashed = self._model.score(mod, features)
        centred = 2.0 * squashed - 1.0
        self.scores += (centred / (1.0 - np.abs(centred))).tolist()
        return squashed


class Walks:
    """The heaviest tasks of a network, opened when they are first asked for."""

    def __init__(self) -> None:
        self._network = ""

    def compare(self, network: str, name: str, seed: int) -> dict[str, float]:
        """Return the best score among few programs and among many, and the seconds, as means of the tasks."""
        if network != self._network:
            self._open(network)
        kind, settings = PROPOSERS[name]
        few, many, seconds = [], [], []
        for task, schedules, postprocs, spaces, model in self._tasks:
            logs = []
            for one in settings:
                search = kind(task.mod, schedules, postprocs, one, seed, self._target)
                search.spaces, search._model = spaces, Judge(model)  # their domains are learnt once
                if name != "dqn, random start":
                    search.suggest(self._schedules)
                del search.carried[SIMILAR:]
                start = time.monotonic()
                search._bred(StopFlag())
                seconds.append(time.monotonic() - start)
                logs.append(search._model.scores)
            few.append(max(logs[0][:FEW]))
            many.append(max(logs[-1][:MANY]))
        return {"few": mean(few), "many": mean(many), "seconds": mean(seconds)}

    def _open(self, network: str) -> None:
        self._target: Any = tvm.target.Target(detect_local(THREADS).target)
        self._network, self._schedules = network, ScheduleDatabase.pretuned(self._target)
        graph = for_inference(load_network(network).imported(), LAYOUTS[0], lanes=vector_lanes(self._target))
        checkpoint, self._tasks = load(CHECKPOINT), []
        for task in network_tasks(lower(graph, cpu=True), self._target, network):
            context = tune_context(task, self._target, "replay-trace", 0)
            schedules, postprocs = context.generate_design_space(), context.space_generator.postprocs
            model: Any = PretrainedCostModel(PretrainedScorer(checkpoint, "none"))
            spaces = DecisionSearch(task.mod, schedules, postprocs, DecisionSettings(), 0, self._target).spaces
            features = [model.features_of(space.template, space.random(Random(0), SAMPLE)) for space in spaces]
            if model.score(task.mod, np.concatenate(features)).std() > 0:  # else the checkpoint is not trusted here
                self._tasks.append((task, schedules, postprocs, spaces, model))
            if len(self._tasks) == TASKS:
                return


def proposed(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return each proposer's row: means over the seeds of means over the networks, with 95% intervals."""
    table = []
    for name in PROPOSERS:
        own = [row for row in rows if row["system"] == name]
        seeds = {row["seed"] for row in own}
        table.append(
            {"system": name}
            | {
                column: interval([mean(row[column] for row in own if row["seed"] == seed) for seed in sorted(seeds)])
                for column in ("few", "many", "seconds")
                if seeds
            }
        )
    return table


def interval(values: Sequence[float]) -> dict[str, float | None]:
    """Return the mean and half the width of its 95% interval, which one value does not have."""
    return {"mean": mean(values), "half": 1.96 * stdev(values) / len(values) ** 0.5 if len(values) > 1 else None}
