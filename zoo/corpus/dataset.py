"""From measured programs to the arrays that a model is trained on."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .corpus import Corpus
from .schema import EmptyDatasetError, Program
from .splits import metric_weight

if TYPE_CHECKING:
    from ..devices import Device
    from ..features import FeatureSchema
    from ..primitives import PrimitiveSequence
    from ..training.dataset import RankingDataset

# A ranking of fewer programs than this says nothing about a model.
MIN_PROGRAMS = 4
# Programs of one chunk of `iter_datasets`; of TCL's matrices on a CPU they take 150 MB.
CHUNK = 1 << 16
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Usable:
    """The programs that can be learnt from, and what was left out.

    Attributes:
        programs: valid programs by task id.
        failed: failed programs, left out.
        dropped: tasks left out because fewer than `MIN_PROGRAMS` programs are valid.
    """

    programs: dict[str, list[Program]]
    failed: int
    dropped: tuple[str, ...]


def sequence_of(program: Program) -> PrimitiveSequence:
    """The program in the common language: as its corpus tells it, else read from its MetaSchedule trace.

    Raises:
        TraceFormatError: neither can be read.
    """
    from ..primitives import PrimitiveSequence, from_trace_json

    if program.primitives is not None:
        return PrimitiveSequence.from_json(program.primitives)
    return from_trace_json(json.loads(program.trace))


def usable_programs(corpus: Corpus, task_ids: Iterable[str], min_programs: int = MIN_PROGRAMS) -> Usable:
    """Select the valid programs of the tasks that have at least `min_programs` of them."""
    kept: dict[str, list[Program]] = {}
    dropped, failed = [], 0
    for task_id in task_ids:
        programs = corpus.programs(task_id)
        valid = [program for program in programs if program.valid]
        failed += len(programs) - len(valid)
        if len(valid) < min_programs:
            dropped.append(task_id)
        else:
            kept[task_id] = valid
    return Usable(kept, failed, tuple(dropped))


def to_dataset(
    corpus: Corpus,
    task_ids: Iterable[str],
    schema: FeatureSchema,
    device: Device | None,
    min_programs: int = MIN_PROGRAMS,
) -> RankingDataset:
    """Features and latencies of the valid programs of some tasks.

    Programs whose sequences are equal stay, each with its own latency: a model cannot tell them apart, and a
    metric should show that. A task's weight is `metric_weight`.

    Args:
        corpus: where the programs are.
        task_ids: the tasks, in the order of the groups.
        schema: what the model takes.
        device: the device of the hardware row; None when the schema has none.
        min_programs: tasks with fewer valid programs are dropped (and logged).

    Returns:
        features (N, rows, width) float32, latency (N,) float64 in seconds, group (N,) int64, and the tasks.

    Raises:
        EmptyDatasetError: no task is left.
    """
    return _join(corpus, list(_parts(corpus, task_ids, schema, device, min_programs)), min_programs)


def iter_datasets(
    corpus: Corpus,
    task_ids: Iterable[str],
    schema: FeatureSchema,
    device: Device | None,
    min_programs: int = MIN_PROGRAMS,
    chunk: int = CHUNK,
) -> Iterator[RankingDataset]:
    """The same, some tasks at a time: of a corpus of any size one chunk is in memory.

    A task is never divided, since its labels hang on its best program; so a chunk exceeds `chunk` programs by
    less than one task. Shuffle `task_ids` from epoch to epoch: which tasks meet in a chunk is their order.

    Raises:
        EmptyDatasetError: no task is left.
    """
    waiting: list[_Part] = []
    given = False
    for part in _parts(corpus, task_ids, schema, device, min_programs):
        waiting.append(part)
        if sum(len(latency) for _, _, latency in waiting) >= chunk:
            yield _join(corpus, waiting, min_programs)
            waiting, given = [], True
    if waiting or not given:
        yield _join(corpus, waiting, min_programs)


_Part = tuple[str, np.ndarray, np.ndarray]


def _parts(
    corpus: Corpus, task_ids: Iterable[str], schema: FeatureSchema, device: Device | None, min_programs: int
) -> Iterator[_Part]:
    """Task id, features (n, rows, width) and latencies (n,) of every task that has enough valid programs."""
    for task_id in task_ids:
        usable = usable_programs(corpus, [task_id], min_programs)
        if usable.failed or usable.dropped:
            _log.info("task %s: %d failed programs left out%s", task_id, usable.failed, ", all" * len(usable.dropped))
        for programs in usable.programs.values():
            features = schema.extract([sequence_of(program) for program in programs], device)
            yield task_id, features, np.array([program.latency for program in programs], dtype=np.float64)


def _join(corpus: Corpus, parts: list[_Part], min_programs: int) -> RankingDataset:
    from ..training.dataset import RankingDataset

    if not parts:
        raise EmptyDatasetError(
            f"no task of {corpus.path} has {min_programs} valid programs",
            remedy="measure more programs of each task (`tchub collect --programs N`)",
        )
    task_ids, features, latencies = zip(*parts, strict=True)
    sizes = [len(latency) for latency in latencies]
    return RankingDataset(
        features=np.concatenate(features),
        latency=np.concatenate(latencies),
        group=np.repeat(np.arange(len(sizes), dtype=np.int64), sizes),
        task_ids=tuple(task_ids),
        task_weights=np.array([metric_weight(corpus.tasks[t]) for t in task_ids], dtype=np.float64),
    )
