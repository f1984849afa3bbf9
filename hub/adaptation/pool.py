"""The candidates of an adaptation, kept on disk so that a resumed run picks among the same ones."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...zoo.adapt.sampling import Pool
from ...zoo.errors import TchubError
from ...zoo.features import get_schema
from ..registry.store import store_error
from ..search.errors import NoCandidateError

if TYPE_CHECKING:
    from ...zoo.models import Checkpoint
    from ...zoo.primitives import PrimitiveSequence
    from ..device.candidate import Candidate
    from ..networks.tasks import TuningTask

# Raise when what a pool file holds changes its meaning; a file of another number is made again.
POOL_FORMAT = 2
# What moves the work folder, named in remedies.
PLACE = "--work-dir or TCHUB_HOME"
ONE_PROGRAM = "one program only, nothing to rank"


class EmptyPoolError(TchubError):
    """No task has a choice of programs."""


@dataclass(frozen=True)
class PoolEntry:
    """One candidate, without the module that is made again from its trace when it is measured."""

    task: int
    key: str
    trace: str
    strategy: str


@dataclass(frozen=True)
class CandidatePool:
    """The candidates of all tasks.

    Attributes:
        tasks: those that have at least two candidates.
        entries: the N candidates, task by task.
        skipped: (task name, reason) of the other tasks.
    """

    tasks: tuple[TuningTask, ...]
    entries: tuple[PoolEntry, ...]
    skipped: tuple[tuple[str, str], ...] = ()

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def group(self) -> np.ndarray:
        """(N,) int64, the task of each candidate."""
        return np.array([entry.task for entry in self.entries], dtype=np.int64)

    def mark(self) -> str:
        """16 hex digits that tell these candidates from any others."""
        names = (f"{self.tasks[entry.task].task_id} {entry.key}" for entry in self.entries)
        return hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]

    def sampling_pool(self, to_rank: bool) -> Pool:
        """What a sampler sees; `to_rank` is `Pool.to_rank`."""
        return Pool(self.group, tuple(task.op for task in self.tasks), to_rank=to_rank)

    def sequences(self, indices: Iterable[int]) -> list[PrimitiveSequence]:
        """Candidates in the primitive language."""
        from ...zoo.primitives import from_trace_json

        return [from_trace_json(json.loads(self.entries[int(index)].trace)) for index in indices]


def pool_features(checkpoint: Checkpoint, pool: CandidatePool, target: dict[str, Any] | str) -> np.ndarray:
    """Return the matrices of all candidates of a pool, float32 (N, rows, width).

    That of a program which is to be lowered and cannot be is zero, as of a program that does nothing.

    Args:
        checkpoint: its feature schema and its device decide.
        pool: the candidates.
        target: the TVM target that they are for, as a dictionary or a tag.
    """
    from ..search.candidate_features import replayed_features

    schema = get_schema(checkpoint.config.feature_schema)
    if schema.source != "statements":
        return checkpoint.features(pool.sequences(range(len(pool))))
    matrices = np.zeros((len(pool), schema.rows, schema.width), np.float32)
    for number, task in enumerate(pool.tasks):
        indices = np.flatnonzero(pool.group == number)
        traces = [pool.entries[index].trace for index in indices]
        features, usable = replayed_features(checkpoint, task.mod, traces, target)
        matrices[indices[usable]] = features
    return matrices


def build_pool(
    tasks: Sequence[TuningTask],
    make: Callable[[TuningTask], list[Candidate]],
    folder: Path,
    recipe: dict[str, Any],
    on_task: Callable[[], None] = lambda: None,
) -> CandidatePool:
    """Make the candidates of every task, or read those that an earlier run with the same recipe made.

    Args:
        tasks: the tasks.
        make: makes one task's candidates.
        folder: where they are kept, one file a task.
        recipe: what the candidates depend on (target, seed, count, TVM), JSON-serialisable.
        on_task: called after each task.

    Raises:
        EmptyPoolError: no task has two candidates.
    """
    kept: list[TuningTask] = []
    entries: list[PoolEntry] = []
    skipped: list[tuple[str, str]] = []
    for task in tasks:
        file = folder / f"{task.task_id}.json.gz"
        try:
            rows = _read(file, recipe) or _write(file, recipe, make(task))
        except NoCandidateError as error:
            skipped.append((task.name, error.message))
        else:
            if len(rows) > 1:
                entries += [PoolEntry(len(kept), *row) for row in rows]
                kept.append(task)
            else:
                skipped.append((task.name, ONE_PROGRAM))
        on_task()
    if not entries:
        raise EmptyPoolError(
            f"none of {len(tasks)} tasks has a choice of programs on this target",
            remedy="choose another --workload, or check the target with `tchub doctor`",
            tasks=len(tasks),
            reasons=sorted({reason for _, reason in skipped})[:3],
        )
    return CandidatePool(tuple(kept), tuple(entries), tuple(skipped))


def _read(file: Path, recipe: dict[str, Any]) -> list[list[str]] | None:
    """The rows of a pool file; None when there is none, or it is of another recipe or torn."""
    try:
        with gzip.open(file, "rt", encoding="utf-8") as stream:
            document = json.load(stream)
    except (OSError, EOFError, ValueError):
        return None
    wanted = {"format": POOL_FORMAT, "recipe": recipe}
    return document["rows"] if {k: document.get(k) for k in wanted} == wanted else None


def _write(file: Path, recipe: dict[str, Any], candidates: list[Candidate]) -> list[list[str]]:
    rows = [[c.key, c.trace, c.strategy] for c in candidates]
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(temporary, "wt", encoding="utf-8", compresslevel=6) as stream:
            json.dump({"format": POOL_FORMAT, "recipe": recipe, "rows": rows}, stream)
        os.replace(temporary, file)
    except OSError as error:
        raise store_error(error, file, PLACE) from error
    finally:
        temporary.unlink(missing_ok=True)
    return rows
