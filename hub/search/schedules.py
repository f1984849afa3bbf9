"""Schedules of earlier tasks, carried over to a new one: the first stage of Fasor's search (Huang et al. 2024, 6.1).

The fastest program of each task that was ever measured is kept by its kernel class: the sampling instructions of its
design space, which leave the extents open. A new task takes the schedules of its class whose extents are the most
similar, with their tiles rescaled.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from math import inf, log2
from operator import itemgetter
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
from tvm.target import Target

from ...zoo.corpus.tir import task_id
from ...zoo.files import write_atomically
from ..device.candidate import trace_json
from ..records.database import FAILED_SECONDS
from .design_space import AVX512, Decisions, decisions_of_trace, extents, kernel_class, vector_registers

# Least Spearman correlation of the extents of two tasks of which one takes the other's schedule (the paper's tau).
LEAST_SIMILARITY = 0.6

PRETUNED = Path(__file__).parent / "pretuned"


@dataclass(frozen=True)
class TaskSchedule:
    """The decisions of a task's fastest program, and its latency in seconds."""

    task_id: str
    decisions: Decisions
    latency: float


class _Pretuned(msgspec.Struct):
    """A file of `PRETUNED`: kernel classes, and of each schedule the number of its class and its fields."""

    kernels: list[str]
    schedules: list[tuple[int, str, Decisions, float]]


class ScheduleDatabase:
    """The fastest schedule of each task, by kernel class.

    Args:
        programs: task id, trace as JSON text, and latency in seconds, in any order.
        known: schedules to begin with; those of `programs` take the place of theirs of the same task.
    """

    def __init__(
        self, programs: Iterable[tuple[str, str, float]] = (), known: Iterable[tuple[str, TaskSchedule]] = ()
    ) -> None:
        fastest: dict[str, tuple[str, str, float]] = {}
        for program in programs:
            if program[2] < FAILED_SECONDS:
                fastest[program[0]] = min(fastest.get(program[0], program), program, key=itemgetter(2))
        self._schedules: dict[str, list[TaskSchedule]] = defaultdict(list)
        for kernel, schedule in known:
            if schedule.task_id not in fastest:
                self._schedules[kernel].append(schedule)
        for name, text, latency in fastest.values():
            trace = json.loads(text)
            self._schedules[kernel_class(trace[0])].append(TaskSchedule(name, decisions_of_trace(trace), latency))

    def __len__(self) -> int:
        return sum(map(len, self._schedules.values()))

    def __iter__(self) -> Iterator[tuple[str, TaskSchedule]]:
        """Yield kernel class and schedule of each task."""
        return ((kernel, schedule) for kernel, own in self._schedules.items() for schedule in own)

    @classmethod
    def pretuned(cls, target: Any) -> Self:
        """Return the schedules in the wheel that suit a CPU best, by its vectors; empty for other devices.

        Args:
            target: as `tvm.target.Target` takes it.
        """
        registers = vector_registers(Target(target))
        if registers is None:
            return cls()
        path = PRETUNED / ("avx512.json" if registers == AVX512 else "avx2.json")
        data = msgspec.json.decode(path.read_bytes(), type=_Pretuned)
        return cls(known=[(data.kernels[row[0]], TaskSchedule(*row[1:])) for row in data.schedules])

    @classmethod
    def of(cls, records: Any) -> Self:
        """Return the schedules of the programs in a MetaSchedule database."""
        programs = []
        for record in records.get_all_tuning_records():
            text = json.dumps(trace_json(record.trace))
            programs.append((task_id(record.workload.mod), text, min(map(float, record.run_secs or [inf]))))
        return cls(programs)

    def write(self, path: Path) -> None:
        """Write the file that `pretuned` reads."""
        kernels = sorted(self._schedules)
        rows = [[kernels.index(kernel), *astuple(schedule)] for kernel, schedule in self]
        write_atomically(path, msgspec.json.encode({"kernels": kernels, "schedules": sorted(rows)}) + b"\n")

    def similar(self, kernel: str, own: Sequence[int]) -> list[tuple[float, TaskSchedule]]:
        """Return the schedules for a design space, the most similar first, with their tasks' distances to it.

        The distance is in doublings of extents; tasks of a lower Spearman correlation than `LEAST_SIMILARITY` are
        left out.

        Args:
            kernel, own: class of the space, and the extents of the loops that it tiles.
        """
        similar = [
            (distance(own, theirs), schedule)
            for schedule in self._schedules.get(kernel, ())
            if similarity(own, theirs := extents(schedule.decisions)) >= LEAST_SIMILARITY
        ]
        return sorted(similar, key=lambda pair: (pair[0], pair[1].task_id))


def similarity(one: Sequence[int], other: Sequence[int]) -> float:
    """Return the Spearman correlation of the extents of two tasks of a kernel class; 1 where a task's are all equal."""
    from scipy.stats import rankdata

    a, b = rankdata(one), rankdata(other)
    return float(np.corrcoef(a, b)[0, 1]) if len(set(a)) > 1 and len(set(b)) > 1 else 1.0


def distance(one: Sequence[int], other: Sequence[int]) -> float:
    """Return by how many doublings the extents of two tasks of a kernel class differ."""
    return sum(abs(log2(a / b)) for a, b in zip(one, other, strict=True))
