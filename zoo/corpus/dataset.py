"""From measured programs to the arrays that a model is trained on."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .corpus import Corpus
from .errors import EmptyDatasetError
from .schema import Program
from .splits import metric_weight

if TYPE_CHECKING:
    from ..devices import Device
    from ..features import FeatureSchema
    from ..training.dataset import RankingDataset

# A ranking of fewer programs than this says nothing about a model.
MIN_PROGRAMS = 4
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
    from ..primitives import from_trace_json
    from ..training.dataset import RankingDataset

    usable = usable_programs(corpus, task_ids, min_programs)
    if usable.failed or usable.dropped:
        _log.info("left out %d failed programs and %d tasks", usable.failed, len(usable.dropped))
    if not usable.programs:
        raise EmptyDatasetError(
            f"no task of {corpus.path} has {min_programs} valid programs",
            remedy="measure more programs of each task (`tchub collect --programs N`)",
            failed=usable.failed,
            dropped=len(usable.dropped),
        )
    flat = [program for programs in usable.programs.values() for program in programs]
    sizes = [len(programs) for programs in usable.programs.values()]
    return RankingDataset(
        features=schema.extract([from_trace_json(json.loads(p.trace)) for p in flat], device),
        latency=np.array([p.latency for p in flat], dtype=np.float64),
        group=np.repeat(np.arange(len(sizes), dtype=np.int64), sizes),
        task_ids=tuple(usable.programs),
        task_weights=np.array([metric_weight(corpus.tasks[t]) for t in usable.programs], dtype=np.float64),
    )
