"""MetaSchedule's database over a run store: every program is on disk, and memory holds next to nothing.

TVM's `JSONDatabase` keeps the trace of every record, 16 KiB for a matrix product, which is 160 MiB after ten thousand
programs; it replays all of them when it is opened; and it does not check that a line was written.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Container, Iterator, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tvm
from tvm import IRModule
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.database import PyDatabase, TuningRecord, Workload

from ...zoo.corpus.tir import task_id
from ...zoo.files import write_files
from ..device.candidate import Candidate, args_of, trace_json, trace_key, tuning_record
from ..device.detect import detect_local
from ..device.measure import Measurement
from .scope import MeasurementScope
from .store import MeasuredProgram, RunStore, open_store

if TYPE_CHECKING:
    from ..networks.tasks import TuningTask

# MetaSchedule's mark for a program that did not run.
FAILED_SECONDS = 1e10
WORKLOADS, RECORDS = "database_workload.json", "database_tuning_record.json"


@derived_object
class RunDatabase(PyDatabase):
    """The programs of a store as a MetaSchedule `Database`.

    Attributes:
        unfit: keys of programs whose traces do not apply to their task; these are not offered.
    """

    def __init__(self, store: RunStore) -> None:
        super().__init__()
        self.store = store
        self.unfit: set[str] = set()
        self._target: Any = tvm.target.Target(json.loads(store.scope.target))
        modules: dict[str, Any] = {name: tvm.ir.load_json(text) for name, text in store.modules().items()}
        self._workloads: dict[str, Any] = {name: Workload(mod) for name, mod in modules.items()}
        self._replayed: dict[str, dict[str, Any]] = {}

    def has_workload(self, mod: IRModule) -> bool:
        """Return True for a module that was committed."""
        return task_id(mod) in self._workloads

    def commit_workload(self, mod: IRModule) -> Any:
        """Return the workload of a module, stored if it is new."""
        name = task_id(mod)
        if name not in self._workloads:
            self.store.put_module(name, str(tvm.ir.save_json(mod)))
            self._workloads[name] = Workload(mod)
        return self._workloads[name]

    def commit_tuning_record(self, record: Any) -> None:
        """Store a record; it is on disk when this returns."""
        self.commit_workload(record.workload.mod)
        trace = trace_json(record.trace)
        name, key = task_id(record.workload.mod), trace_key(trace)
        scheduled = trace[0] and trace[0][0][0] != "EnterPostproc"  # else it is the task as extracted
        strategy = "tune" if scheduled else "untuned"
        args = args_of(record.args_info or ())
        candidate = Candidate(name, key, json.dumps(trace, separators=(",", ":")), strategy, record.workload.mod, args)
        self.store.put(candidate, measurement_of(record))

    def get_top_k(self, workload: Any, top_k: int) -> list[Any]:
        """Return the fastest valid records of a workload, fastest first."""
        name = task_id(workload.mod)
        # MetaSchedule asks for the same ones every round: those of the last answer are kept.
        known, records = self._replayed.get(name, {}), {}
        for key in self.store.ranking(name):
            if len(records) == top_k:
                break
            program = None if key in known else self.store.program(name, key)
            record = known.get(key) if program is None else self._replay(program, workload.mod)
            if record is not None:
                records[key] = record
        self._replayed[name] = records
        return list(records.values())

    def get_all_tuning_records(self) -> list[Any]:
        """Return every record, fastest first: each is replayed, and the list holds them all."""
        programs = [p for p in self.store.programs() if p.strategy != "untuned" and p.task_id in self._workloads]
        programs.sort(key=lambda program: program.latency)
        records = (self._replay(program, self._workloads[program.task_id].mod) for program in programs)
        return [record for record in records if record is not None]

    def __len__(self) -> int:
        return sum(program.strategy != "untuned" for program in self.store.programs(traces=False))

    def latest(self, mod: IRModule, count: int) -> list[Any]:
        """Return the last `count` records of a module, in the order in which they were measured."""
        programs = (program for program in self.store.programs(task_id(mod)) if program.strategy != "untuned")
        records = (self._replay(program, mod) for program in deque(programs, maxlen=count))
        return [record for record in records if record is not None]

    def applies(self, program: MeasuredProgram, mod: IRModule) -> bool:
        """Return True where a stored program's trace applies to a module."""
        return tuning_record(mod, self._target, self.commit_workload(mod), json.loads(program.trace), ()) is not None

    def _replay(self, program: MeasuredProgram, mod: IRModule) -> Any | None:
        if program.key in self.unfit:
            return None
        times = program.measurement.latencies if isfinite(program.latency) else (FAILED_SECONDS,)
        workload = self.commit_workload(mod)
        record = tuning_record(mod, self._target, workload, json.loads(program.trace), times)
        if record is None:
            self.unfit.add(program.key)
        return record


def measurement_of(record: Any) -> Measurement:
    """Return the measurement that a MetaSchedule record holds."""
    times = tuple(float(s) for s in record.run_secs or ())
    failed = not times or min(times) >= FAILED_SECONDS
    return Measurement((), "run", "it did not run") if failed else Measurement(times)


def database(out: Path | str, target: Any, *, threads: int | None = None, share: bool = True) -> Any:
    """Open the database of a folder, for `ms.tune_tir(..., database=...)` on this machine.

    A run that was killed loses nothing but the programs in hand, and the next run goes on with those measured.

    Args:
        target: a TVM target, or one as a dictionary or a tag.
        threads: of a program; None for the target's `num-cores`.
        share: keep the programs in the home, too, for later runs of `tchub.hub.tune`.

    Raises:
        StorageError: the folder cannot be written.
    """
    where: Any = tvm.target.Target(target)
    local = detect_local()
    cores = threads or int(where.attrs.get("num-cores", 0)) or local.cores
    scope = MeasurementScope.of(local.device.name, local.cpu_model, where, cores)
    return RunDatabase(open_store(Path(out), scope, share=share))


def programs_of(records: Any, mod: IRModule) -> Iterator[tuple[list[Any], tuple[float, ...]]]:
    """Yield trace `[instructions, decisions]` and seconds of each program of a module in any MetaSchedule database."""
    if isinstance(records, RunDatabase):
        own: Any = records
        for program in own.store.programs(task_id(mod)):
            if program.strategy != "untuned":
                yield json.loads(program.trace), program.measurement.latencies
        return
    workload = records.commit_workload(mod)
    for record in records.get_all_tuning_records():
        if record.workload.same_as(workload):
            yield trace_json(record.trace), measurement_of(record).latencies


def best_programs(records: Any, tasks: Sequence[TuningTask], without: Container[str] = ()) -> Any:
    """Return a database in memory with the best program of each task, but for tasks to be compiled untuned."""
    best = ms.database.MemoryDatabase()
    for task in tasks:
        if task.task_id in without:
            continue
        for record in records.get_top_k(records.commit_workload(task.mod), 1):
            workload = best.commit_workload(task.mod)
            best.commit_tuning_record(
                TuningRecord(record.trace, workload, record.run_secs, record.target, record.args_info)
            )
    return best


def export_json(records: Any, folder: Path) -> None:
    """Write the programs as the two files of TVM's `JSONDatabase`.

    `database_workload.json` has a line a workload, `[hash, module]`; `database_tuning_record.json` a line a record,
    `[workload's line, [trace, seconds, target, arguments]]`. Raises a StorageError.
    """
    store, workloads = records.store, records._workloads
    lines = {name: line for line, name in enumerate(workloads)}
    target = json.loads(store.scope.target)

    def rows() -> Iterator[bytes]:
        for program in store.programs():
            if program.strategy != "untuned" and program.task_id in lines:
                times = program.measurement.latencies if isfinite(program.latency) else (FAILED_SECONDS,)
                args = [["TENSOR", dtype, shape] for shape, dtype in program.args]
                yield _line([lines[program.task_id], [json.loads(program.trace), times, target, args]])

    write_files(folder, {WORKLOADS: (_line(workload.as_json()) for workload in workloads.values()), RECORDS: rows()})


def _line(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), default=list).encode() + b"\n"
