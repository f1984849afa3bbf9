"""What each part of Fasor saves on spaces of which all programs were measured.

    python -m scripts.benchmarks spaces --json

They are 24 small tasks, of networks that neither the checkpoint nor the schedules have learnt from (`measure.py`).
Searches are replayed on them: the search is `tune`'s own, and what a measurement would tell is looked up (`lookup.py`).
Tasks take turns by `tune`'s scheduler, which is told no roofline, and each counts alike.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from math import inf, isfinite, log2
from pathlib import Path
from statistics import mean
from typing import Any

import click
import numpy as np
from tchub.hub.search.cost_model import choose_model, pretrained_cost_model
from tchub.hub.search.decision_search import Key
from tchub.hub.search.design_space import Decisions, decisions_of_trace, kernel_class
from tchub.hub.search.interrupt import StopFlag
from tchub.hub.search.scheduler import ScoredRound, TaskProgress, batch_size, next_round
from tchub.hub.search.schedules import ScheduleDatabase
from tchub.hub.search.settings import DecisionSettings, DQNSettings
from tchub.zoo.adapt.fine_tune import FineTuneConfig, fine_tune
from tchub.zoo.adapt.sampling.sampler import dissimilar
from tchub.zoo.corpus import Corpus, split_tasks, usable_programs
from tchub.zoo.devices import Device
from tchub.zoo.training.dataset import RankingDataset

from scripts.benchmarks.common import CLOCK, ROOT, Clock, Document, Journal, benchmark, lacking, work_option
from scripts.benchmarks.curves import DATABASE, TODAY, figures, saved
from scripts.benchmarks.spaces.lookup import SEARCHES, MeasuredTask, read_tasks
from scripts.benchmarks.spaces.measure import measure_spaces

# Fasor's: tasks that are measured first, and programs of each.
FEW_SHOT_TASKS, FEW_SHOT_PROGRAMS = 10, 4
# Share of the rounds that keep to the subspace.
FOCUSED = 0.8
# Operations a byte of the machine that measured the spaces, as `tune` measures them: 237 GFLOP/s over 98 GB/s.
RIDGE = 2.4


@dataclass(frozen=True)
class System:
    """What picks the next programs.

    Attributes:
        search: `bred` (what `tune` does), `dqn` or `annealing`.
        model: `tilenet`, `xgb` (boosted trees of what was measured, as stock MetaSchedule's) or `random`.
        database: begin with the schedules of the most similar tasks.
        walks: once a task was measured its search is a local one, see `DecisionSettings.walks`.
        few_shot: measure the least similar tasks first and fine-tune once on them.
        subspace: which half of the decisions is searched in four of five rounds, the others being as the database has
            them: the most `sensitive`, or `random` ones; None: all, always.
        roofline: False leaves the DQN's second term of the reward out.
    """

    search: str = "bred"
    model: str = "tilenet"
    database: bool = True
    walks: bool = True
    few_shot: bool = False
    subspace: str | None = None
    roofline: bool = True


def sensitivity(corpus: Corpus, task_ids: Sequence[str]) -> dict[str, np.ndarray]:
    """Return for each kernel class how much of log latency each decision alone explains, over its tasks' programs."""
    moments: dict[str, list[np.ndarray]] = {}
    for programs in usable_programs(corpus, task_ids).values():
        by_kernel: dict[str, list[tuple[Decisions, float]]] = {}
        for program in programs:
            trace = json.loads(program.trace)
            by_kernel.setdefault(kernel_class(trace[0]), []).append((decisions_of_trace(trace), program.latency))
        for kernel, pairs in by_kernel.items():
            if len(pairs) >= 8:
                moments.setdefault(kernel, []).append(_explained([d for d, _ in pairs], [x for _, x in pairs]))
    return {kernel: np.mean(shares, axis=0) for kernel, shares in moments.items()}


def _explained(programs: Sequence[Decisions], latencies: Sequence[float]) -> np.ndarray:
    """Return the share of the variance of log latency that a linear fit on each decision alone explains."""
    logs, shares = np.log(latencies), []
    for values in zip(*programs, strict=True):
        numbers = np.array([list(map(log2, v)) if isinstance(v, tuple) else [v] for v in values], float)
        design = np.column_stack([np.ones(len(logs)), numbers])
        rest = logs - design @ np.linalg.lstsq(design, logs, rcond=None)[0]
        shares.append(1 - rest.var() / logs.var() if logs.var() else 0.0)
    return np.array(shares)


class Trees:
    """Boosted trees on what was measured of all tasks, as stock MetaSchedule's, or random scores.

    Args:
        reader: a cost model that makes the features; its scores are not read.
        learns: False scores at random, always.
    """

    def __init__(self, reader: Any, seed: int, learns: bool) -> None:
        self._reader, self._rng, self._seed, self._learns = reader, np.random.default_rng(seed), seed, learns
        self._rows: list[tuple[int, np.ndarray, float]] = []
        self._trees: Any = None

    def features_of(self, template: Any, decisions: Any) -> np.ndarray:
        """Return the features that the pretrained model would read."""
        return self._reader.features_of(template, decisions)

    def intensity(self, template: Any, decisions: Any) -> None:
        """Return None: they estimate no intensity."""

    def score(self, mod: Any, features: np.ndarray) -> np.ndarray:
        """Return scores (N,): the latency of the task's best program over the expected one."""
        if self._trees is None and self._rows and self._learns:
            from xgboost import XGBRegressor

            best: dict[int, float] = {}
            for one, _, latency in self._rows:
                best[one] = min(latency, best.get(one, inf))
            wanted = [best[one] / latency for one, _, latency in self._rows]
            self._trees = XGBRegressor(n_estimators=50, max_depth=6, learning_rate=0.2, n_jobs=1)
            self._trees.set_params(random_state=self._seed).fit(np.stack([row for _, row, _ in self._rows]), wanted)
        if self._trees is None:
            return self._rng.random(len(features))
        return self._trees.predict(features.reshape(len(features), -1)).astype(float)

    def observe(self, mod: Any, features: np.ndarray, latencies: Sequence[float]) -> None:
        """Take measured programs."""
        rows = zip(features.reshape(len(features), -1), latencies, strict=True)
        self._rows += [(id(mod), row, latency) for row, latency in rows if isfinite(latency)]
        self._trees = None


class Replay:
    """Tasks searched together by one system with one seed.

    Args:
        budget: programs to measure.
        checkpoint: a TileNet that has learnt from none of them, with the spec sheet by which it reads their programs.
        database, sensitive: of other networks' tasks.

    Attributes:
        searching: seconds of a CPU; measuring: seconds that the measurements took when they were made.
    """

    def __init__(
        self, tasks: Sequence[MeasuredTask], system: System, seed: int, budget: int, checkpoint: Any,
        database: ScheduleDatabase, sensitive: Mapping[str, np.ndarray],
    ) -> None:  # fmt: skip
        self.tasks, self.system, self.budget = tasks, system, budget
        self._rng, self._seed = np.random.default_rng(seed), seed
        self._checkpoint, self._sensitive = checkpoint, sensitive
        self._model: Any = pretrained_cost_model(checkpoint, "context")
        if system.model != "tilenet":
            self._model = Trees(self._model, seed, system.model == "xgb")
        # Each task counts alike: its latency over that of its fastest program.
        self._weights = np.array([1 / task.best / len(tasks) for task in tasks])
        self._best = np.array([task.median for task in tasks])
        self._progress = [
            TaskProgress(float(weight), cost=task.flops, cheap_search=True)
            for weight, task in zip(self._weights, tasks, strict=True)
        ]
        batch = batch_size(budget, self._progress)
        dqn = DQNSettings(roofline=system.roofline, ridge=RIDGE) if system.search == "dqn" else None
        kind, settings = SEARCHES[system.search], DecisionSettings(dqn=dqn)
        if not system.walks:
            settings = replace(settings, walks=0.0, near=settings.apart)
        self._searches = [kind(task, settings, seed, batch, self._model) for task in tasks]
        self._batch = batch
        if system.database:
            for search in self._searches:
                search.suggest(database)
        self._measured: list[tuple[int, Key, float]] = []
        self.searching = self.measuring = 0.0

    def unmeasured(self) -> list[float]:
        """Return the latency of the program that each task gets where nothing is measured, over its fastest one's."""
        pairs = zip(self.tasks, self._searches, strict=True)
        chosen = [(task, search.unmeasured() or search.candidates(1, StopFlag())) for task, search in pairs]
        return [task.latency(keys[0]) / task.best for task, keys in chosen]

    def curve(self) -> list[float]:
        """Return the mean latency of the tasks after each measurement, none at first, over their fastest programs'.

        A task that was not measured yet has its median program, as by a random pick.
        """
        return [float(self._weights @ self._best), *self._points()]

    def _points(self) -> Iterator[float]:
        if self.system.few_shot:
            with self._clock():
                first = self._signature()
            for index in first:
                yield from self._measure(index, self._searches[index]._drawn(FEW_SHOT_PROGRAMS)[:FEW_SHOT_PROGRAMS])
            with self._clock():
                self._fine_tune()
        while len(self._measured) < self.budget:
            rounds = next_round(self._progress, self._batch, 8)
            if not rounds:
                return
            for index, count in rounds:
                with self._clock():
                    keys = self._picked(index, min(count, self.budget - len(self._measured)))
                self._progress[index].exhausted = not keys
                yield from self._measure(index, keys)

    def _picked(self, index: int, count: int) -> list[Key]:
        """Return the next programs of a task; none where it has no others, or none are wanted."""
        if not count:
            return []
        search = self._searches[index]
        if self.system.subspace:
            narrow = self._rng.random() < FOCUSED
            drawn = np.random.default_rng([self._seed, index])  # the same decisions in each round
            search.narrow((drawn if self.system.subspace == "random" else self._sensitive) if narrow else None)
            if keys := search.candidates(count, StopFlag()):
                return keys
            search.narrow(None)
        return search.candidates(count, StopFlag())

    @contextmanager
    def _clock(self) -> Iterator[None]:
        started = time.process_time()
        yield
        self.searching += time.process_time() - started

    def _measure(self, index: int, keys: Sequence[Key]) -> Iterator[float]:
        if not keys:
            return
        task, search = self.tasks[index], self._searches[index]
        unknown = not any(one == index and isfinite(latency) for one, _, latency in self._measured)
        latencies = [task.latency(key) for key in keys]
        with self._clock():
            features = self._features(index, keys)
            scores = self._model.score(task.mod, features)
            self._progress[index].record(latencies)
            self._progress[index].scored.append(ScoredRound(tuple(scores), tuple(latencies), search.waiting))
            self._model.observe(task.mod, features, latencies)
        for key, latency in zip(keys, latencies, strict=True):
            self._measured.append((index, key, latency))
            self.measuring += task.seconds[key]
            search.latencies[key] = latency
            if isfinite(latency):
                self._best[index] = latency if unknown else min(self._best[index], latency)
                unknown = False
            yield float(self._weights @ self._best)

    # Fasor's few-shot learning ---------------------------------------------------------------------------

    def _signature(self) -> list[int]:
        """Return the tasks that are the least alike."""
        pairs = enumerate(self._searches)
        rows = np.stack([self._features(index, search._drawn(32)).mean(axis=0).ravel() for index, search in pairs])
        rows = rows[:, np.ptp(rows, axis=0) > 0]
        return dissimilar((rows - rows.mean(axis=0)) / rows.std(axis=0))[:FEW_SHOT_TASKS].tolist()

    def _features(self, index: int, keys: Sequence[Key]) -> np.ndarray:
        """Return the features of programs of a task, (N, rows, width)."""
        spaces = self._searches[index].spaces
        return np.concatenate([self._model.features_of(spaces[n].template, [decisions]) for n, decisions in keys])

    def _fine_tune(self) -> None:
        """Let the checkpoint learn from all that was measured, which it then has as context, too."""
        valid = [one for one in self._measured if isfinite(one[2])]
        data = RankingDataset(
            np.concatenate([self._features(index, [key]) for index, key, _ in valid]),
            np.array([latency for _, _, latency in valid]),
            np.array([index for index, _, _ in valid]),
            tuple(task.task_id for task in self.tasks),
            np.ones(len(self.tasks)),
        )
        model = fine_tune(self._checkpoint.model, data, FineTuneConfig(seed=self._seed)).model
        self._model = pretrained_cost_model(replace(self._checkpoint, model=model), "context")
        for search in self._searches:
            search._model = self._model
        for row, (index, _, latency) in zip(data.features, valid, strict=True):
            self._model.observe(self.tasks[index].mod, row[None], [latency])


# The benchmark -------------------------------------------------------------------------------------------

SPACES = ROOT / "corpora" / "xeon-spaces"
# A checkpoint of the family of the spaces, and what was measured there of other networks.
REPLAYED, OTHERS = "tilenet-xeon", ROOT / "corpora" / "xeon-cascadelake-prefetch"
# What `tune` does; the systems behind it change a part of that.
DEFAULT = "default"
SYSTEMS = {
    "random": System(model="random", database=False, walks=False),
    "xgb": System(model="xgb", database=False, walks=False),
    TODAY: System(database=False, walks=False),
    DATABASE: System(walks=False),
    "today + walks": System(database=False),
    DEFAULT: System(),
    "+ subspace": System(subspace="sensitive"),
    "+ random subspace": System(subspace="random"),
    "+ few-shot": System(few_shot=True),
    "dqn": System("dqn"),
    "dqn, no transfer": System("dqn", model="xgb"),
    "dqn, default start": System("dqn", database=False),
    "dqn, subspace": System("dqn", subspace="sensitive"),
    "dqn, random subspace": System("dqn", subspace="random"),
    "dqn, no roofline": System("dqn", roofline=False),
    "annealing": System("annealing"),
}
SEEDS, PER_TASK = 10, 32


@benchmark(
    "spaces",
    click.option("--measure", is_flag=True, help="Measure all programs of the spaces, on an idle machine, and end."),
    work_option("spaces"),
    CLOCK,
)
def main(measure: bool, work: Path, clock: Clock) -> Document | None:
    """Searches side by side on measured spaces."""
    if measure:
        measure_spaces(work, SPACES, clock)
        return None
    replayed, journal, rows = Replayed(), Journal(work / "replays.jsonl"), list[Any]()
    for seed in range(SEEDS):
        for name, system in SYSTEMS.items():
            key = {"network": "spaces", "corpus": replayed.hash, "system": name, "seed": seed} | asdict(system)
            rows.append(journal.get(lambda s=system, k=seed: replayed.replay(s, k), clock, **key))
    done = [row for row in rows if row]
    table, left = figures(done, SYSTEMS), lacking(len(rows) - len(done), len(rows), "replays")
    return saved(table, DEFAULT), {"systems": table, "not_done": left}, sorted({row["seed"] for row in done})


class Replayed:
    """The measured spaces, and what was measured of other networks; read when the first replay is missing."""

    def __init__(self) -> None:
        self.corpus = Corpus.open(SPACES)
        self.hash = self.corpus.meta["files"]["programs.parquet"]["sha256"][:12]

    @cached_property
    def _read(self) -> tuple[Any, ...]:
        meta, others = self.corpus.meta, Corpus.open(OTHERS)
        split, choice = split_tasks(others), choose_model(REPLAYED, runs_on=Device.from_dict(meta["device_sheet"]))
        sensitive = sensitivity(others, (*split.train, *split.val))
        database = ScheduleDatabase.pretuned(meta["target"], choice.schedules)
        return read_tasks(self.corpus), choice.make().scorer.checkpoint, database, sensitive

    def replay(self, system: System, seed: int) -> dict[str, Any]:
        """Replay one system; latencies are relative to the fastest programs', `unmeasured` is of no measurement."""
        tasks, *others = self._read
        budget = PER_TASK * len(tasks)
        replay = Replay(tasks, system, seed, budget, *others)
        row = {"tasks": len(tasks), "curve": [round(latency, 5) for latency in replay.curve()]}
        blind = mean(Replay(tasks, system, seed, budget, *others).unmeasured())
        return row | {"searching": replay.searching, "measuring": replay.measuring, "unmeasured": blind}
