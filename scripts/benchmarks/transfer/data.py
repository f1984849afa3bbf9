"""Programs of the transfer benchmark: whole corpora as matrices, kept on disk, and the parts of one target."""

import os
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import click
import numpy as np
from tchub.zoo.corpus import Corpus, computations, computed, free_tasks, held_out_computations
from tchub.zoo.training import RankingDataset, TrainConfig
from tchub.zoo.training.programs import Share, corpus_device, read_programs, resolve_schema

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
PARTS = ("train", "val", "test")
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
    def sizes(self) -> dict[str, Any]:
        """The sizes of a network that the features decide."""
        return {"width": self.schema.width, "hardware": self.schema.hardware}

    @property
    def all_given(self) -> RankingDataset:
        """The programs of all sources."""
        return RankingDataset.concat(self.given)


@cache
def schema_of(name: str, arch: str) -> Any:
    """The feature schema that an architecture's recipe has for a corpus's kind of device."""
    return resolve_schema(TrainConfig.find(arch).feature_schema, corpus_device(open_corpus(name)).kind)


@cache
def programs(folder: Path, name: str, arch: str) -> RankingDataset:
    """All programs of a corpus's split, for the papers' networks at most `CAP` of a task; read once, kept as a file."""
    schema, cap = schema_of(name, arch), 0 if arch == "tilenet" else CAP
    path = folder / f"{name}-{schema.name}-{schema.version}-{cap}.npz"
    if not path.is_file():
        started, corpus = time.perf_counter(), open_corpus(name)
        data, _ = read_programs(corpus, free_tasks(corpus, (), *PARTS), schema, share=Share(per_task=cap))
        if data is None:
            raise click.ClickException(f"no task of {name} has enough programs")
        note(f"{name}: {len(data)} programs read in {time.perf_counter() - started:.0f} s")
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}.npz")
        np.savez(part, **{name: getattr(data, name) for name in _ARRAYS})
        os.replace(part, path)
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in _ARRAYS}
    return RankingDataset(**arrays | {"task_ids": tuple(arrays["task_ids"].tolist())})


def read_scene(
    folder: Path, split: str, target: str, sources: tuple[str, ...], seen: bool, arch: str = "tilenet"
) -> Scene:
    """The parts of one target, of programs that a folder keeps; features are those of an architecture."""
    own, given, judging = divide(open_corpus(target), [open_corpus(name) for name in sources], split, seen)
    whole, cap = programs(folder, target, arch), 0 if arch == "tilenet" else SOURCE_CAP
    taught = (cut(programs(folder, name, arch), ids, cap) for name, ids in zip(sources, given, strict=True))
    filled = set(judging) & set(whole.task_ids)  # tasks of too few programs are in no matrix
    judged = cut(whole, filled) if filled else None
    facts = schema_of(target, arch), corpus_device(open_corpus(target))
    return Scene(target, sources, seen, split, *facts, cut(whole, own), tuple(taught), judged)


def cut(data: RankingDataset, tasks: Collection[str], per_task: int = 0) -> RankingDataset:
    """The programs of some tasks, of each `per_task` at random (0: all); tasks are numbered anew."""
    wanted, rng = set(tasks), np.random.default_rng(0)
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


def divide(
    target: Corpus, sources: Sequence[Corpus], split: str, seen: bool
) -> tuple[list[str], list[list[str]], list[str]]:
    """Task ids by their role: training tasks of the target, what each source teaches, and what judges.

    The tasks of a split of the target judge. Test tasks of any corpus are hidden from all of them, by what they
    compute. *Unseen*: so are the judging tasks. *Seen*: the sources keep their programs of the judging tasks, and only
    tasks that a source has are judged; the target itself never learns from them across tasks.
    """
    tests, judging = held_out_computations([target, *sources]), computed(target, split)
    if split != "test":
        judging = {name: tasks for name, tasks in judging.items() if name not in tests}
    own = free_tasks(target, tests | judging.keys(), "train", "val")
    hidden = tests - judging.keys() if seen else tests | judging.keys()
    taught = [free_tasks(source, hidden, *PARTS) for source in sources]
    if seen:
        known = {computations(source)[task] for source, tasks in zip(sources, taught, strict=True) for task in tasks}
        judging = {name: tasks for name, tasks in judging.items() if name in known}
    return own, taught, sorted(task for tasks in judging.values() for task in tasks)
