"""Programs of the transfer benchmark: whole corpora as matrices, kept on disk, and the parts of one target."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from tchub.zoo.training import RankingDataset

from scripts.benchmarks.common import note
from scripts.zoo.plan import open_corpus

# The target, and the devices that teach, in the order in which a continual learner meets them.
TARGETS: dict[str, tuple[str, ...]] = {
    "k80": ("v100", "rtx2080ti", "a100", "mi50"),
    "mi50": ("v100", "k80", "rtx2080ti"),
    "rtx2080ti": ("v100", "k80", "a100"),
    "rtx3080-autotvm": ("v100-autotvm", "k80-autotvm", "t4-autotvm"),
    "ryzen-3700x-autotvm": ("xeon-8124m-autotvm", "xeon-4210-autotvm", "cortex-a72-autotvm"),
    "cortex-a72-autotvm": ("ryzen-3700x-autotvm", "xeon-8124m-autotvm", "xeon-4210-autotvm"),
    "epyc-turin": ("ryzen-3700x-autotvm", "xeon-8124m-autotvm", "xeon-4210-autotvm"),
}
# Programs of a task that the papers' networks learn at most, of the target and of a source: they take minutes.
CAP, SOURCE_CAP = 200, 40
SHARE = 0.1
_ARRAYS = ("features", "latency", "group", "task_ids", "task_weights")


@dataclass(frozen=True)
class Scene:
    """One target, its sources, and who knows the judging tasks.

    Attributes:
        seen: whether the sources know the judging tasks.
        split: "val" or "test": the part that judges.
        schema: of the features; device: the target's.
        own: all programs of the target's training tasks; given: those of each source; judged: of the judging tasks.
    """

    target: str
    sources: tuple[str, ...]
    seen: bool
    split: str
    schema: Any
    device: Any
    own: RankingDataset
    given: tuple[RankingDataset, ...]
    judged: RankingDataset | None

    @property
    def path(self) -> Path:
        """Of what belongs to it, under the folder of the runs."""
        return Path(self.split) / "+".join((self.target, *self.sources)) / ("seen" if self.seen else "unseen")

    @property
    def all_given(self) -> RankingDataset:
        """The programs of all sources."""
        return RankingDataset.concat(self.given)


@dataclass
class Library:
    """Corpora as matrices, each read once and kept as a file; caps are of any task and of a source's, 0 for all."""

    folder: Path
    cap: int = 0
    source_cap: int = 0
    _open: dict[tuple[str, str], RankingDataset] = field(default_factory=dict)

    def programs(self, name: str, recipe_schema: str) -> RankingDataset:
        """All programs of a corpus's split."""
        schema = schema_of(name, recipe_schema)
        key = (name, f"{schema.name}-{schema.version}-{self.cap}")
        if key not in self._open:
            path = self.folder / f"{name}-{key[1]}.npz"
            if not path.is_file():
                data = vars(self._read(name, schema))
                path.parent.mkdir(parents=True, exist_ok=True)
                part = path.with_suffix(f".{os.getpid()}.npz")
                np.savez(part, **{name: data[name] for name in _ARRAYS})
                os.replace(part, path)
            with np.load(path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in _ARRAYS}
            self._open[key] = RankingDataset(**arrays | {"task_ids": tuple(arrays["task_ids"].tolist())})
        return self._open[key]

    def _read(self, name: str, schema: Any) -> RankingDataset:
        from tchub.zoo.training.programs import Share, read_programs

        started = time.perf_counter()
        ids = sorted(task for part in tasks_of(name).parts.values() for task in part)
        data, _ = read_programs(open_corpus(name), ids, schema, share=Share(per_task=self.cap))
        if data is None:
            raise click.ClickException(f"no task of {name} has enough programs")
        note(f"{name}: {len(data)} programs read in {time.perf_counter() - started:.0f} s")
        return data

    def scene(
        self, target: str, sources: tuple[str, ...], seen: bool, split: str, recipe_schema: str = "nest"
    ) -> Scene:
        """The parts of one target; features in the form of a recipe's schema."""
        from tchub.zoo.training.programs import corpus_device

        roles = divide(tasks_of(target), [tasks_of(name) for name in sources], split, seen)
        whole = self.programs(target, recipe_schema)
        given = tuple(
            cut(self.programs(name, recipe_schema), ids, self.source_cap)
            for name, ids in zip(sources, roles.given, strict=True)
        )
        filled = set(roles.judged) & set(whole.task_ids)  # tasks of too few programs are in no matrix
        judged = cut(whole, filled) if filled else None
        schema = schema_of(target, recipe_schema)
        device = corpus_device(open_corpus(target))
        return Scene(target, sources, seen, split, schema, device, cut(whole, roles.own), given, judged)


@cache
def tasks_of(name: str) -> Tasks:
    """The split of a corpus, by what its tasks compute."""
    from tchub.zoo.corpus import computations, split_tasks

    corpus = open_corpus(name)
    names, split = computations(corpus), split_tasks(corpus)
    return Tasks(name, {part: {task: names[task] for task in split.part(part)} for part in PARTS})


@lru_cache
def schema_of(name: str, recipe_schema: str) -> Any:
    """The feature schema of a corpus's kind of device."""
    from tchub.zoo.training.programs import corpus_device, resolve_schema

    return resolve_schema(recipe_schema, corpus_device(open_corpus(name)).kind)


def cut(data: RankingDataset, tasks: Collection[str], per_task: int = 0, seed: int = 0) -> RankingDataset:
    """The programs of some tasks, of each `per_task` at random (0: all); tasks are numbered anew."""
    wanted, rng = set(tasks), np.random.default_rng(seed)
    chosen = [number for number, task in enumerate(data.task_ids) if task in wanted and len(data.members[number])]
    index = [np.sort(rng.permutation(data.members[n])[: per_task or None]) for n in chosen]
    return RankingDataset(
        features=data.features[np.concatenate(index)],
        latency=data.latency[np.concatenate(index)],
        group=np.repeat(np.arange(len(chosen)), [len(part) for part in index]),
        task_ids=tuple(data.task_ids[n] for n in chosen),
        task_weights=data.task_weights[chosen],
    )


def draw(data: RankingDataset, share: float, seed: int) -> np.ndarray:
    """Indices, ascending, of a share of each task's programs at random, two at the least."""
    rng = np.random.default_rng(seed)
    parts = [rng.permutation(m)[: max(2, round(share * len(m)))] for m in data.members]
    return np.sort(np.concatenate(parts))


PARTS = ("train", "val", "test")


@dataclass(frozen=True)
class Tasks:
    """The split of one corpus: each part from task id to what the task computes."""

    name: str
    parts: Mapping[str, Mapping[str, str]]

    def computed(self, part: str) -> set[str]:
        """What the tasks of a part compute."""
        return set(self.parts[part].values())

    def without(self, hidden: set[str], parts: Sequence[str] = PARTS) -> dict[str, str]:
        """The tasks of some parts that compute nothing hidden."""
        return {task: what for part in parts for task, what in sorted(self.parts[part].items()) if what not in hidden}


class Division(NamedTuple):
    """Task ids by their role: training and judging tasks of the target, and what each source teaches, in order."""

    own: tuple[str, ...]
    given: tuple[tuple[str, ...], ...]
    judged: tuple[str, ...]


def divide(target: Tasks, sources: Sequence[Tasks], split: str, seen: bool) -> Division:
    """The roles of all tasks, of which those of a split of the target judge.

    Test tasks of any corpus are hidden from all of them, by what they compute. *Unseen*: so are the judging tasks.
    *Seen*: the sources keep their programs of the judging tasks, and only tasks that a source has are judged;
    the target itself never learns from them across tasks.
    """
    tests = set().union(*(corpus.computed("test") for corpus in (target, *sources)))
    judging = {t: c for t, c in target.parts[split].items() if split == "test" or c not in tests}
    judged = set(judging.values())
    own = target.without(tests | judged, ("train", "val"))
    taught = [source.without(tests - judged if seen else tests | judged) for source in sources]
    if seen:
        known = set().union(*(tasks.values() for tasks in taught))
        judging = {t: c for t, c in judging.items() if c in known}
    return Division(tuple(own), tuple(tuple(tasks) for tasks in taught), tuple(sorted(judging)))
