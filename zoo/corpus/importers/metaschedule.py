"""MetaSchedule databases, of today's TVM and of older ones -> entries.

A database is a folder with `database_workload.json` (a line a workload: [structural hash, module]) and
`database_tuning_record.json` (a line a record: [workload index, [trace, seconds, target, arguments]]), packed
or not. Modules of older TVM cannot be loaded; a `workload_tvmscript.json` beside them (a list of TVMScript
texts, in the order of the workloads) stands in. So does `tasks.json` (a list of `workload`, `task_name`, `op`,
`flops`) for what the module would tell. Without both a task is known by its arguments alone.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, cast

import msgspec

from ...features.columns import OPS
from ...primitives import TraceFormatError, from_trace_json
from ...primitives.instructions import RENAMED
from .. import computation
from ..canonical import before_postproc, trace_key
from ..schema import CorpusError, Task
from ..tir import computation_of_module, operator_class
from .records import (
    DATABASE,
    MISSHAPEN,
    PACKED_ERRORS,
    Broken,
    ImportContext,
    LogEntry,
    TaskFacts,
    decode,
    find_packed,
    latencies,
    open_lines,
    open_text,
    read_records,
)
from .tvmscript import read_script

if TYPE_CHECKING:
    from tvm import IRModule

SCRIPTS, TASKS = "workload_tvmscript.json", "tasks.json"
# Seconds that TVM writes for a program that could not be built or run.
_SENTINEL = 1e9
_LARGEST = 64 << 20  # characters of each file beside the database; the script of a fused operator has 20,000


class _Run(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    trace: tuple[list[Any], list[Any]]
    seconds: list[Any] | None
    target: Any
    arguments: list[Any]


class _Record(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    workload: int
    run: _Run


class _TaskRow(msgspec.Struct):
    """A row of `tasks.json`."""

    workload: int
    task_name: str | None = None
    op: str | None = None
    flops: float | None = None


def read_metaschedule(path: str | Path, context: ImportContext) -> Iterator[LogEntry | Broken]:
    """Read a database folder; `context.facts` is by structural hash, the text that leads a workload's line.

    Broken records have the kinds `not-json`, `wrong-shape`, `unknown-workload`, `unknown-instruction`,
    `bad-trace`, `bad-result` and, for the rest of a damaged file, `not-readable`. A program without a time is a
    failed one (`invalid`): the database does not say why.

    Raises:
        CorpusError: the folder is no database.
    """
    folder = Path(path)
    records, workloads = (find_packed(folder, name) for name in DATABASE)
    if workloads is None or records is None:
        raise CorpusError(
            f"{folder} is no MetaSchedule database",
            remedy=f"name a folder with {' and '.join(DATABASE)}",
            path=str(folder),
        )
    tasks = DatabaseTasks(folder, workloads, context)
    yield from read_records(records, partial(_read, tasks=tasks, context=context))


def _read(line: str, where: str, tasks: DatabaseTasks, context: ImportContext) -> LogEntry:
    record = decode(line, _Record)
    run, trace = record.run, modern_trace(record.run.trace)
    task = tasks.get(record.workload, run.arguments)
    # A record that was never measured has no times.
    seconds = latencies(run.seconds, _SENTINEL) if run.seconds else ()
    try:
        # Cut first: what the postprocessors derive differs from program to program, what is before it hardly does.
        primitives = from_trace_json(before_postproc(trace)).to_json()
    except TraceFormatError as error:
        raise Broken("unknown-instruction" if error.unknown else "bad-trace", error.message) from None
    program = context.program(
        "metaschedule",
        task,
        where,
        key=trace_key(trace),
        trace=json.dumps(trace, separators=(",", ":")),
        primitives=primitives,
        latencies=seconds,
        latency=median(seconds) if seconds else math.nan,
        error=None if seconds else "invalid",
        error_message=None if seconds else "the build or the run failed; the database does not say which",
        target=json.dumps(run.target, sort_keys=True),
    )
    return LogEntry(task, program)


def modern_trace(trace: list[Any] | tuple[list[Any], list[Any]]) -> list[Any]:
    """Return a trace of TVM 0.16 or later in the names and attributes of TVM 0.27, which applies it."""
    instructions, decisions = trace
    return [[_modern(*instruction) for instruction in instructions], decisions]


def _modern(name: str, inputs: list[Any], attributes: list[Any], outputs: list[Any]) -> list[Any]:
    if name == "Split" and len(attributes) == 1:
        attributes = [*attributes, 0]  # disable_predication, which came later
    return [RENAMED.get(name, name), inputs, attributes, outputs]


class DatabaseTasks:
    """The tasks of a database by workload index, each made when it is first asked for.

    Args:
        folder: the database; files beside it are looked for here.
        file: its workloads.
        context: with the facts by structural hash.
    """

    def __init__(self, folder: Path, file: Path, context: ImportContext) -> None:
        try:
            with open_lines(file) as lines:
                self._lines = [line for line in lines if line.strip()]
        except PACKED_ERRORS as error:
            raise _unreadable(file, error) from error
        self._scripts = _beside(folder, SCRIPTS, list[str])
        rows: list[_TaskRow] = _beside(folder, TASKS, list[_TaskRow])
        self._named = {row.workload: TaskFacts(row.task_name, row.op, row.flops) for row in rows}
        self._facts = context.facts
        self._tasks: dict[int, Task] = {}

    def get(self, index: int, arguments: list[Any]) -> Task:
        """Return the task of a record with these arguments.

        Raises:
            Broken: there is no such workload, or it cannot be read.
        """
        if not 0 <= index < len(self._lines):
            raise Broken("unknown-workload", f"there is no workload {index}")
        if index not in self._tasks:
            try:
                self._tasks[index] = self._make(index, arguments)
            except (*MISSHAPEN, RuntimeError) as error:  # the last of TVM's own
                raise Broken("unknown-workload", f"workload {index} cannot be read: {error!r:.200}") from error
        return self._tasks[index]

    def _make(self, index: int, arguments: list[Any]) -> Task:
        structure, packed = json.loads(self._lines[index])
        facts = self._facts.get(str(structure)) or self._named.get(index, TaskFacts())
        name = facts.name or f"workload-{index}"
        mod = self._module(index, packed)
        if mod is None:
            shown = json.dumps(arguments, separators=(",", ":"))
            text = computation.unknown(hashlib.sha256(shown.encode()).hexdigest()[:16])
            task_id = hashlib.sha256(f"{text}|{shown}|{name}".encode()).hexdigest()[:16]
            op = facts.op if facts.op in OPS else "other"
            return Task(task_id, name, op, facts.flops or 0.0, shown, text, facts.networks)
        import tvm
        from tvm_ffi import structural_hash

        text = computation_of_module(mod)
        task_id = f"{structural_hash(mod) & (2**64 - 1):016x}"
        workload = str(tvm.ir.save_json(mod))
        return Task(
            task_id, name, operator_class(mod, text), facts.flops or _flops(mod), workload, text, facts.networks
        )

    def _module(self, index: int, packed: str) -> IRModule | None:
        """Return the module, from the database if this TVM can, else from the script beside it."""
        import tvm

        graph = base64.b64decode(packed)[8:].decode() if not packed.lstrip().startswith("{") else packed
        if '"root_index"' in graph[:200]:
            return cast("IRModule", tvm.ir.load_json(graph))
        if index >= len(self._scripts):
            return None
        return read_script(self._scripts[index])


def _beside(folder: Path, name: str, form: Any) -> Any:
    """Return the value of a JSON file beside a database; an empty list where there is none."""
    file = find_packed(folder, name)
    if file is None:
        return []
    try:
        with open_text(file) as stream:
            text = stream.read(_LARGEST + 1)
        if len(text) > _LARGEST:
            raise ValueError(f"it has more than {_LARGEST} characters")
        return msgspec.json.decode(text, type=form)
    except (*PACKED_ERRORS, ValueError, RecursionError) as error:
        raise _unreadable(file, error) from error


def _unreadable(file: Path, error: Exception) -> CorpusError:
    return CorpusError(f"{file} cannot be read: {error}", remedy="correct it or move it away", path=str(file))


def _flops(mod: IRModule) -> float:
    from tvm.s_tir.analysis import estimate_tir_flops

    try:
        return float(estimate_tir_flops(mod))
    except Exception:  # TVM has no count for some intrinsics; the count is information, not a need
        return 0.0
