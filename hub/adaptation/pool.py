"""The candidates of an adaptation: made once and kept on disk, and measured on demand."""

import gzip
import hashlib
import json
import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm.s_tir import meta_schedule as ms

from ...zoo.adapt import AdaptError, parse_budget
from ...zoo.corpus.tir import computation_of_module
from ...zoo.corpus.workloads import SUITES
from ...zoo.features import get_schema
from ...zoo.files import write_files
from ...zoo.models import Checkpoint
from ...zoo.primitives import PrimitiveSequence, from_trace_json
from ...zoo.tvm_import import import_tensor_intrinsics
from ..device.candidate import Candidate, args_of, replayed
from ..device.detect import LocalDevice
from ..device.device_choice import ChosenDevice
from ..device.errors import FAILURE_RATE, MeasurementFailureRateError, check_failure_rate
from ..device.measure import MeasureConfig, Measurement
from ..networks.alternatives import extract
from ..networks.frontend.network import Network
from ..networks.sources import open_network
from ..networks.tasks import TuningTask
from ..networks.workloads import tasks_of, workload_names
from ..records.store import RunStore
from ..search.candidate_features import replayed_features
from ..search.candidates import map_ahead, random_candidates
from ..search.errors import NoCandidateError
from ..search.interrupt import StopFlag
from .config import AdaptProgress, SessionContext, check_count

# Raise when the meaning of a pool file changes; a file of another number is made again.
POOL_FORMAT = 3
ONE_PROGRAM = "one program only, nothing to rank"


@dataclass(frozen=True)
class PoolEntry:
    """One candidate; its module is made again from its trace when it is measured."""

    task: int
    key: str
    trace: str
    strategy: str


def replay(task: TuningTask, entry: PoolEntry) -> Candidate:
    """Return the measurable form of a candidate: its trace, applied to the task's module."""
    schedule = replayed(task.mod, json.loads(entry.trace))
    # Of the scheduled module, not of the task's: a schedule may lay out an argument anew.
    infos: Any = ms.arg_info.ArgInfo.from_entry_func(schedule.mod, remove_preproc=True)
    return Candidate(task.task_id, entry.key, entry.trace, entry.strategy, schedule.mod, args_of(infos))


@dataclass(frozen=True)
class CandidatePool:
    """The candidates of all tasks.

    Attributes:
        tasks: those that have at least two candidates.
        entries: the N candidates, task by task.
        device: name of the device that measures them.
        skipped: (task name, reason) of the other tasks.
        to_rank: whether these are the tasks to be tuned; a suite's and a corpus's stand for those of other networks.
        judging: candidates that judge and are not learnt; without any a hold-out is drawn.
    """

    tasks: tuple[TuningTask, ...]
    entries: tuple[PoolEntry, ...]
    device: str = ""
    skipped: tuple[tuple[str, str], ...] = ()
    to_rank: bool = True
    judging: tuple[int, ...] = ()
    framework: str = "metaschedule"

    def __len__(self) -> int:
        return len(self.entries)

    @cached_property
    def group(self) -> np.ndarray:
        """The task of each candidate, (N,) int64."""
        return np.array([entry.task for entry in self.entries], dtype=np.int64)

    @cached_property
    def computations(self) -> tuple[str, ...]:
        """What each task computes, in the words that all corpora share."""
        return tuple(computation_of_module(task.mod) or task.task_id for task in self.tasks)

    def name(self, index: int) -> tuple[str, str]:
        """Return the task id and the key of a candidate."""
        entry = self.entries[index]
        return self.tasks[entry.task].task_id, entry.key

    def digest(self) -> str:
        """Return 16 hex digits that tell these candidates from any others."""
        names = (" ".join(self.name(index)) for index in range(len(self)))
        return hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]

    def sequences(self, indices: Iterable[int]) -> list[PrimitiveSequence]:
        """Return candidates in the primitive language."""
        return [from_trace_json(json.loads(self.entries[int(index)].trace)) for index in indices]

    def features(self, checkpoint: Checkpoint, target: dict[str, Any] | str) -> np.ndarray:
        """Return float32 (N, rows, width) as a checkpoint reads them; zero for a program that cannot be lowered."""
        schema = get_schema(checkpoint.config.feature_schema)
        if schema.source != "statements":
            return checkpoint.features(self.sequences(range(len(self))))
        matrices = np.zeros((len(self), schema.rows, schema.width), np.float32)
        for number, task in enumerate(self.tasks):
            indices = np.flatnonzero(self.group == number)
            traces = [self.entries[index].trace for index in indices]
            features, usable = replayed_features(checkpoint, task.mod, traces, target)
            matrices[indices[usable]] = features
        return matrices


def extract_tasks(workload: str | Network, target: Any, precision: str = "float32") -> list[TuningTask]:
    """Return the tasks of a network, of an operator or a suite by name, or of a file as `tchub tune` takes it."""
    import_tensor_intrinsics(target.kind.name)
    if isinstance(workload, str) and workload in workload_names():
        return tasks_of(workload, target, precision=precision)
    network = open_network(workload) if isinstance(workload, str) else workload
    return extract(network, target, precision=precision)


def make_pool(
    workload: str | Network, local: LocalDevice, scope: dict[str, Any], context: SessionContext, stop: StopFlag
) -> CandidatePool:
    """Extract the tasks and make their candidates, or read those of an earlier run of the same scope and seed."""
    config, progress, budget = context.config, context.progress, parse_budget(context.config.budget)
    count = config.per_task
    target = tvm.target.Target(local.target)
    progress.start("tasks", 1)
    with context.timed("tasks"):
        tasks = extract_tasks(workload, target, config.precision)
    progress.advance()
    most = len(tasks) * count
    if tasks and (programs := budget.programs(most)) is not None:
        check_count(budget, programs, f"{most} candidates at most")
    recipe = {"format": POOL_FORMAT, **scope, "seed": config.seed, "count": count}
    kept: list[TuningTask] = []
    entries: list[PoolEntry] = []
    skipped: list[tuple[str, str]] = []
    progress.start("candidates", len(tasks))

    def make(task: TuningTask) -> list[list[str]] | NoCandidateError:
        file = context.folder / "pool" / f"{task.task_id}.json.gz"
        try:
            return _rows(file, recipe, lambda: random_candidates(task, target, count, config.seed))
        except NoCandidateError as error:
            return error

    with context.timed("candidates"), closing(map_ahead(make, tasks, lambda: len(tasks))) as pools:
        for task, rows in pools:
            if isinstance(rows, NoCandidateError):
                skipped.append((task.name, rows.message))
            elif len(rows) > 1:
                entries += [PoolEntry(len(kept), *row) for row in rows]
                kept.append(task)
            else:
                skipped.append((task.name, ONE_PROGRAM))
            progress.advance()
            stop.check("interrupted while making candidates")
    if not entries:
        raise AdaptError(
            f"none of {len(tasks)} tasks has a choice of programs on this target",
            remedy="choose another --workload, or check the target with `tchub doctor`",
            reasons=sorted({reason for _, reason in skipped})[:3],
        )
    if (text := budget.text_for(len(entries))) != budget.text:
        progress.note(f"there are fewer candidates than the budget: {text}")
    return CandidatePool(tuple(kept), tuple(entries), local.device.name, tuple(skipped), workload not in SUITES)


def _rows(file: Path, recipe: dict[str, Any], make: Callable[[], list[Candidate]]) -> list[list[str]]:
    """Return the rows of a pool file; made anew where there is none, or it is of another recipe or torn."""
    with suppress(OSError, EOFError, ValueError, zlib.error):
        document = json.loads(gzip.decompress(file.read_bytes()))
        if document.get("recipe") == recipe:
            return document["rows"]
    rows = [[candidate.key, candidate.trace, candidate.strategy] for candidate in make()]
    text = json.dumps({"recipe": recipe, "rows": rows})
    write_files(file.parent, {file.name: gzip.compress(text.encode(), compresslevel=6)})
    return rows


class PoolLatencies(ABC):
    """Latencies of a pool's candidates, as an adaptation asks for them; hopeless runs are stopped.

    Attributes:
        results: by index; reused: how many of them were measured before.
    """

    def __init__(self, pool: CandidatePool, stop: StopFlag, progress: AdaptProgress) -> None:
        self._pool, self._stop, self._progress = pool, stop, progress
        self.results: dict[int, Measurement] = {}
        self.reused = 0

    @property
    def seconds(self) -> float:
        """Seconds of building and running these programs, whenever they were paid."""
        return sum(result.cost_seconds for result in self.results.values())

    @abstractmethod
    def answer(self, indices: list[int], limit: float) -> Iterator[tuple[int, Measurement]]:
        """Yield the measurements of candidates, until `seconds` reaches the limit."""

    def latency(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return (k,) float64 seconds of measured candidates; NaN where the program failed."""
        return np.array([self.results[int(i)].latency for i in indices], dtype=np.float64)

    def measure(self, indices: Sequence[int] | np.ndarray, seconds: float = math.inf) -> list[int]:
        """Measure candidates in this order until they or the seconds run out; return those measured, sorted.

        Raises:
            MeasurementFailureRateError: nearly every program failed.
            InterruptedRunError: the user stopped it; what was measured is in the journal.
        """
        done: list[int] = []
        for index, measurement in self.answer([int(i) for i in indices], self.seconds + seconds):
            self.results[index] = measurement
            done.append(index)
            self._progress.advance(failed=measurement.error is not None)
            # The journal's failures count too; the measurer knows its own only.
            self.check()
        if self._stop.requested:
            if len(failed := self._failures()) > FAILURE_RATE * len(self.results):
                self._forget(failed)
            self._stop.check(f"interrupted after {len(self.results)} measured programs", measured=len(self.results))
        return sorted(done)

    def check(self, *, last: bool = False) -> None:
        """Raise MeasurementFailureRateError where nearly every program failed, or at the end all of a few."""
        failures = self._failures()
        remedy = "run `tchub doctor`; once the machine is mended, the same command tries these programs again"
        try:
            check_failure_rate([*failures.values()], len(self.results), remedy, last=last)
        except MeasurementFailureRateError:
            self._forget(failures)  # the machine fails, not the programs
            raise

    def _failures(self) -> dict[int, str]:
        return {index: f"{one.error}: {one.message}" for index, one in self.results.items() if one.error is not None}

    def _forget(self, failed: Iterable[int]) -> None:  # noqa: B027
        """Take failures out of the journal."""


class PoolMeasurer(PoolLatencies, AbstractContextManager["PoolMeasurer"]):
    """Measures candidates of a pool; the device's workers start at the first program that the journal lacks."""

    def __init__(
        self, pool: CandidatePool, device: ChosenDevice, journal: RunStore, stop: StopFlag, progress: AdaptProgress
    ) -> None:
        super().__init__(pool, stop, progress)
        self._device, self._journal = device, journal
        self._stack = ExitStack()
        self._measurer: Any = None

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def answer(self, indices: list[int], limit: float) -> Iterator[tuple[int, Measurement]]:
        index_of: dict[tuple[str, str], int] = {}

        def missing() -> Iterator[Candidate]:
            for index in fresh:
                if self.seconds >= limit or self._stop.requested:
                    return
                entry = self._pool.entries[index]
                candidate = replay(self._pool.tasks[entry.task], entry)
                index_of[candidate.task_id, candidate.key] = index
                yield candidate

        fresh: list[int] = []
        for index in indices:
            paid = self._journal.get(*self._pool.name(index))
            if paid is None:
                fresh.append(index)
            else:
                self.reused += 1
                yield index, _timed(paid)
        if not fresh or self.seconds >= limit or self._stop.requested:
            return
        for candidate, raw in self._stop.each(self._started().measure(missing())):
            measurement = _timed(raw)
            if self._stop.requested and measurement.error is not None:
                continue  # Ctrl-C may have reached a worker too: that failure is not the program's
            self._journal.put(candidate, measurement)
            yield index_of[candidate.task_id, candidate.key], measurement

    def _started(self) -> Any:
        if self._measurer is None:
            measurer = self._device.measurer(MeasureConfig(threads=self._device.facts.cores))
            self._measurer = self._stack.enter_context(measurer)
            for index, result in self.results.items():
                if result.error is None:
                    self._measurer.know(self._pool.name(index)[0], result.latency)
            if self._device.card is not None:  # where a wrong program (a race) may well be the fastest
                for task in self._pool.tasks:
                    self._measurer.refer(task.task_id, task.mod)
        return self._measurer

    def _forget(self, failed: Iterable[int]) -> None:
        for index in failed:
            self._journal.forget_failure(*self._pool.name(index))


def _timed(measurement: Measurement) -> Measurement:
    """Return a measurement whose latency is no positive number as a failure: nothing can be learnt from it."""
    if measurement.error is None and not 0 < measurement.latency < math.inf:
        return replace(measurement, latencies=(), error="run", message=f"it took {measurement.latency} s")
    return measurement
