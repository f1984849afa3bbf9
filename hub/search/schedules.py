"""Schedules of earlier tasks, carried over to a new one: the first stage of Fasor's search (Huang et al. 2024, 6.1).

The fastest program of each task that was ever measured is kept by its kernel class: the sampling instructions of its
design space, which leave the extents open. A new task takes the schedules of its class whose extents are the most
similar, with their tiles rescaled.
"""

import ast
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import lru_cache
from math import inf, log2
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, Self

import msgspec
import numpy as np
from msgspec import Meta
from tvm.target import Target

from ...zoo.corpus import Corpus, free_tasks, held_out_computations
from ...zoo.corpus.tir import task_id
from ...zoo.models.config import corrupt
from ...zoo.untrusted import parse_json, read_plain
from ..device.candidate import trace_json
from ..device.extensions import vector_registers
from ..records.database import FAILED_SECONDS
from ..registry.files import SCHEDULES_FILE
from ..registry.sources import bundled_root
from .design_space import TILES, Decisions, decisions_of_trace, extents, kernel_class

# Least Spearman correlation of the extents of two tasks of which one takes the other's schedule (the paper's tau).
LEAST_SIMILARITY = 0.6

# Latency of a program with short vectors, over that of its task with the longest, up to which its schedule is kept.
NEARLY = 1.15
# Of a checkpoint's file: bytes, schedules for each length of vectors, and characters of a kernel class. That in the
# wheel has 0.12 MB, 663, and 324: each schedule is compared with each new task.
MAX_BYTES, _MOST, _LONGEST = 4 << 20, 5000, 2000

Registers = tuple[int, int]
"""How many vector registers a core has, and the floats of one."""


@dataclass(frozen=True)
class TaskSchedule:
    """The decisions of a task's fastest program, and its latency in seconds."""

    task_id: str
    decisions: Decisions
    latency: float


_Vectors = Annotated[str, Meta(pattern=r"\A[1-9][0-9]{0,2}x[1-9][0-9]{0,2}\Z")]
_Decision = Annotated[int, Meta(ge=-2, le=2**31)] | tuple[Annotated[int, Meta(ge=1, le=2**31)], ...]
_Row = tuple[Annotated[int, Meta(ge=0)], str, tuple[_Decision, ...], Annotated[float, Meta(gt=0)]]


class _File(msgspec.Struct):
    """A checkpoint's `schedules.json`: kernel classes, and by vector registers the schedules, each with its class."""

    format: Annotated[int, Meta(ge=1, le=1)]
    kernels: Annotated[list[str], Meta(max_length=_MOST)]
    schedules: dict[_Vectors, Annotated[list[_Row], Meta(max_length=_MOST)]]


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
    def pretuned(cls, target: Any, path: Path | None = None) -> Self:
        """Return the schedules that a checkpoint brings; empty for other devices than CPUs.

        Args:
            target: as `tvm.target.Target` takes it; the schedules of the nearest vectors to its are taken.
            path: a checkpoint's `schedules.json`; None for those of the checkpoints in the wheel, of a task the first
                one's by name.

        Raises:
            CorruptCheckpointError: the file is damaged, or holds something else.
        """
        registers = vector_registers(Target(target))
        known: dict[str, tuple[str, TaskSchedule]] = {}
        if registers is not None:
            for one in [path] if path else sorted(bundled_root().glob(f"*/*/{SCHEDULES_FILE}")):
                if by_vectors := read_schedules(one):
                    for pair in by_vectors[min(by_vectors, key=lambda other: _apart(registers, other))]:
                        known.setdefault(pair[1].task_id, pair)
        return cls(known=known.values())

    @classmethod
    def of(cls, records: Any) -> Self:
        """Return the schedules of the programs in a MetaSchedule database."""
        programs = []
        for record in records.get_all_tuning_records():
            text = json.dumps(trace_json(record.trace))
            programs.append((task_id(record.workload.mod), text, min(map(float, record.run_secs or [inf]))))
        return cls(programs)

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
    a, b = _ranks(tuple(one)), _ranks(tuple(other))
    # Rounded: of four extents a correlation may be the very limit.
    return round(float(a @ b), 9) if a.any() and b.any() else 1.0


@lru_cache(maxsize=4096)
def _ranks(extents: tuple[int, ...]) -> np.ndarray:
    """Return the ranks of extents, of mean 0 and norm 1; zeros where all are equal."""
    from scipy.stats import rankdata

    ranks = rankdata(extents) - (len(extents) + 1) / 2
    return ranks / (np.linalg.norm(ranks) or 1.0)


def distance(one: Sequence[int], other: Sequence[int]) -> float:
    """Return by how many doublings the extents of two tasks of a kernel class differ."""
    return sum(abs(log2(a / b)) for a, b in zip(one, other, strict=True))


def learnt_schedules(corpora: Iterable[Corpus]) -> dict[Registers, ScheduleDatabase]:
    """Return the fastest schedules of the tasks that a checkpoint learns from, by the vector registers of the CPUs.

    Latencies of two devices do not compare: those of a device that comes later take the place of an earlier one's.
    Shorter vectors have the longest ones' schedules too, which `DesignSpace.carry_over` shrinks: a program of theirs
    stays where it is nearly as fast as on the same device with its longest vectors, since elsewhere its search may have
    found no good one.

    Args:
        corpora: those of other frameworks than MetaSchedule and of GPUs bring none, nor do tasks that compute what one
            of these corpora tests on.
    """
    corpora = list(corpora)
    held = held_out_computations(corpora)
    groups: dict[tuple[Registers, Any], list[Corpus]] = {}
    for corpus in corpora:
        if registers := _registers(corpus):
            machine = corpus.meta["device"], corpus.meta.get("threads") or corpus.meta["target"].get("num-cores")
            groups[registers, machine] = [*groups.pop((registers, machine), []), corpus]  # the last one of all now
    measured = {key: ScheduleDatabase(_fastest(own, held)) for key, own in groups.items()}
    learnt: dict[Registers, ScheduleDatabase] = {}
    for (registers, machine), own in measured.items():
        longest = measured[max((key for key in measured if key[1] == machine), key=lambda key: _length(key[0]))]
        latencies = {schedule.task_id: schedule.latency for _, schedule in longest}
        kept = [pair for pair in own if pair[1].latency <= NEARLY * latencies.get(pair[1].task_id, inf)]
        learnt[registers] = _before(kept, learnt.get(registers, ()))
    for registers, own in learnt.items():
        learnt[registers] = _before(own, learnt[max(learnt, key=_length)])
    return learnt


def brought(corpora: Iterable[Corpus]) -> tuple[dict[str, bytes], dict[str, int]]:
    """Return what a checkpoint brings of schedules, name -> content, and what its lineage says; both {} for none."""
    learnt = {registers: own for registers, own in learnt_schedules(corpora).items() if len(own)}
    if not learnt:
        return {}, {}
    return {SCHEDULES_FILE: schedules_json(learnt)}, {"schedules": min(_MOST, max(map(len, learnt.values())))}


def schedules_json(learnt: Mapping[Registers, ScheduleDatabase]) -> bytes:
    """Return the text of the `schedules.json` that `read_schedules` reads."""
    kernels = sorted({kernel for own in learnt.values() for kernel, _ in own})
    rows = {
        f"{count}x{floats}": sorted([kernels.index(kernel), *astuple(schedule)] for kernel, schedule in own)[:_MOST]
        for (count, floats), own in sorted(learnt.items())
    }
    return msgspec.json.encode({"format": 1, "kernels": kernels, "schedules": rows}) + b"\n"


def read_schedules(path: Path) -> dict[Registers, ScheduleDatabase]:
    """Return the schedules of a checkpoint's `schedules.json`; raises CorruptCheckpointError."""
    try:
        data = msgspec.convert(parse_json(read_plain(path, MAX_BYTES)), _File)
        slots = [_slots(kernel) for kernel in data.kernels]
        for number, name, decisions, _ in (row for rows in data.schedules.values() for row in rows):
            if number >= len(slots) or not _answers(slots[number], decisions):
                raise ValueError(f"the schedule of {name[:40]!r} does not fit its kernel class")
    except (OSError, ValueError, msgspec.ValidationError) as error:
        raise corrupt(path, str(error)) from error
    read = {}
    for vectors, rows in data.schedules.items():
        count, floats = map(int, vectors.split("x"))
        read[count, floats] = ScheduleDatabase(known=[(data.kernels[row[0]], TaskSchedule(*row[1:])) for row in rows])
    return read


def _registers(corpus: Corpus) -> Registers | None:
    """Return the vector registers of the CPU whose MetaSchedule programs a corpus holds; None for any other."""
    target = corpus.meta.get("target")
    if not isinstance(target, dict) or corpus.meta.get("framework", "metaschedule") != "metaschedule":
        return None
    try:
        return vector_registers(Target(target))
    except (ValueError, TypeError, RuntimeError):  # a target of another release, which this TVM does not take
        return None


def _fastest(corpora: Sequence[Corpus], held: set[str]) -> Iterator[tuple[str, str, float]]:
    """Yield each training task's fastest program whose schedule can be taken over."""
    for corpus in corpora:
        for name in free_tasks(corpus, held, "train", "val"):
            valid = [one for one in corpus.programs(name) if one.valid and one.framework == "metaschedule"]
            best = min(valid, key=lambda program: program.latency, default=None)
            if best is not None and _is_schedule(best.trace):
                yield best.task_id, best.trace, best.latency


def _is_schedule(text: str) -> bool:
    """Return whether a trace answers its sampling instructions; one of a foreign log may lack answers."""
    try:
        trace = json.loads(text)
        return _answers(_slots(kernel_class(trace[0])), decisions_of_trace(trace))
    except (ValueError, TypeError, LookupError):
        return False


def _before(first: Iterable[tuple[str, TaskSchedule]], rest: Iterable[tuple[str, TaskSchedule]]) -> ScheduleDatabase:
    """Return schedules, those of `rest` where the first ones have none of a task."""
    first = list(first)
    tasks = {schedule.task_id for _, schedule in first}
    return ScheduleDatabase(known=(*first, *(pair for pair in rest if pair[1].task_id not in tasks)))


def _slots(kernel: str) -> list[tuple[str, list[Any]]]:
    """Return name and attributes of each sampling instruction of a kernel class; raises ValueError."""
    try:
        slots = [(str(name), [*attrs]) for name, attrs in ast.literal_eval(kernel[: _LONGEST + 1])]
        if all(name != "SampleCategorical" or isinstance(attrs[0], list) for name, attrs in slots):
            return slots
    except (SyntaxError, TypeError, LookupError, MemoryError, RecursionError) as error:
        raise ValueError(f"{kernel[:80]!r} is no kernel class") from error
    raise ValueError(f"{kernel[:80]!r} has a choice among nothing")


def _answers(slots: Sequence[tuple[str, list[Any]]], decisions: Decisions) -> bool:
    """Return whether each decision is one that its sampling instruction can have."""
    if len(slots) != len(decisions):
        return False
    for (name, attrs), decision in zip(slots, decisions, strict=True):
        if name in TILES:
            answers = isinstance(decision, tuple) and [len(decision)] == attrs[:1]
        elif name == "SampleCategorical":
            answers = isinstance(decision, int) and decision in range(len(attrs[0]))
        else:
            answers = isinstance(decision, int)
        if not answers:
            return False
    return True


def _length(registers: Registers) -> tuple[int, int]:
    """Return what orders vectors by their length."""
    return registers[1], registers[0]


def _apart(one: Registers, other: Registers) -> tuple[float, float]:
    """Return by how many doublings the lengths of two devices' vectors differ, and their numbers."""
    return abs(log2(one[1] / other[1])), abs(log2(one[0] / other[0]))
