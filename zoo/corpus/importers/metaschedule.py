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
from ..schema import CorpusError, Program, Task
from ..tir import class_of_computation, computation_of_module, operator_class
from .records import (
    MISSHAPEN,
    PACKED_ERRORS,
    Broken,
    ImportContext,
    LogEntry,
    TaskFacts,
    check_texts,
    decode,
    find_packed,
    open_lines,
    open_text,
    read_records,
)
from .tvmscript import read_script

if TYPE_CHECKING:
    from tvm import IRModule

RECORDS, WORKLOADS = "database_tuning_record.json", "database_workload.json"
SCRIPTS, TASKS = "workload_tvmscript.json", "tasks.json"
# Seconds that TVM writes for a program that could not be built or run.
SENTINEL = 1e9
_LARGEST = 64 << 20  # characters of each file beside the database; the script of a fused operator has 20,000


class _Run(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    trace: tuple[list[Any], list[Any]]
    seconds: Any
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
    `bad-trace`, `bad-times` and, for the rest of a damaged file, `not-readable`. A program without a time is a
    failed one (`invalid`): the database does not say why.

    Raises:
        CorpusError: the folder is no database.
    """
    folder = Path(path)
    workloads, records = (find_packed(folder, name) for name in (WORKLOADS, RECORDS))
    if workloads is None or records is None:
        raise CorpusError(
            f"{folder} is no MetaSchedule database",
            remedy=f"name a folder with {WORKLOADS} and {RECORDS}",
            path=str(folder),
        )
    tasks = DatabaseTasks(folder, workloads, context)
    yield from read_records(records, partial(_read, tasks=tasks, context=context))


def modern_trace(trace: list[Any] | tuple[list[Any], list[Any]]) -> list[Any]:
    """Return a trace of TVM 0.16 or later in the names and attributes of TVM 0.27, which applies it."""
    instructions, decisions = trace
    return [[_modern(*instruction) for instruction in instructions], decisions]


def _modern(name: str, inputs: list[Any], attributes: list[Any], outputs: list[Any]) -> list[Any]:
    if name == "Split" and len(attributes) == 1:
        attributes = [*attributes, 0]  # disable_predication, which came later
    return [RENAMED.get(name, name), inputs, attributes, outputs]


def _read(line: str, where: str, tasks: DatabaseTasks, context: ImportContext) -> LogEntry:
    record = decode(line, _Record)
    trace = modern_trace(record.run.trace)
    task = tasks.get(record.workload, record.run.arguments)
    return LogEntry(task, _program(task, trace, record.run, context, where))


def _program(task: Task, trace: list[Any], run: _Run, context: ImportContext, where: str) -> Program:
    seconds = _seconds(run.seconds)
    try:
        # Cut first: what the postprocessors derive differs from program to program, what is before it hardly does.
        primitives = from_trace_json(before_postproc(trace)).to_json()
    except TraceFormatError as error:
        raise Broken("unknown-instruction" if error.unknown else "bad-trace", error.message) from None
    return context.program(
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


def _seconds(times: Any) -> tuple[float, ...]:
    """Return the repeats; none for a failed program. A record that was never measured has no times."""
    try:
        seconds = tuple(float(value) for value in times or ())
    except (TypeError, ValueError):
        raise Broken("bad-times", f"no times: {times!r:.80}") from None
    if not all(math.isfinite(value) and value > 0 for value in seconds):
        raise Broken("bad-times", f"no times: {times!r:.80}")
    return () if any(value >= SENTINEL for value in seconds) else seconds


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
        self._rows = {row.workload: row for row in _beside(folder, TASKS, list[_TaskRow])}
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
        row = self._rows.get(index, _TaskRow(index))
        facts = self._facts.get(str(structure), TaskFacts())
        name = facts.name or row.task_name or f"workload-{index}"
        flops = facts.flops if facts.flops is not None else row.flops or 0.0
        mod = self._module(index, packed)
        if mod is None:
            op = facts.op or row.op
            text, shown = _text_of_arguments(op, arguments)
            task_id = hashlib.sha256(f"{text}|{shown}|{name}".encode()).hexdigest()[:16]
            op = class_of_computation(text) or (op if op in OPS else "other")
            return Task(task_id, name, op, flops, shown, text, facts.networks)
        import tvm
        from tvm_ffi import structural_hash

        text = computation_of_module(mod)
        task_id = f"{structural_hash(mod) & (2**64 - 1):016x}"
        workload = str(tvm.ir.save_json(mod))
        return Task(task_id, name, operator_class(mod, text), flops or _flops(mod), workload, text, facts.networks)

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
        check_texts(text)
        return msgspec.json.decode(text, type=form)
    except (*PACKED_ERRORS, ValueError, RecursionError) as error:
        raise _unreadable(file, error) from error


def _unreadable(file: Path, error: Exception) -> CorpusError:
    return CorpusError(f"{file} cannot be read: {error}", remedy="correct it or move it away", path=str(file))


def _text_of_arguments(op: str | None, arguments: list[Any]) -> tuple[str, str]:
    """Return the computation of a task without a module, and its arguments as JSON."""
    shapes = [[int(extent) for extent in argument[2]] for argument in arguments if len(argument) == 3]
    shown = json.dumps(arguments, separators=(",", ":"))
    return _of_shapes(op, shapes) or computation.unknown(hashlib.sha256(shown.encode()).hexdigest()[:16]), shown


def _of_shapes(op: str | None, shapes: list[list[int]]) -> str | None:
    """Return the computation of inputs and output (last), where the operator is known; NCHW and NT, as in Relay."""
    if len(shapes) < 2:
        return None
    data, weight, out = shapes[0], shapes[1], shapes[-1]
    if op == "conv2d" and [len(s) for s in (data, weight, out)] == [4, 4, 4] and weight[0] == out[1]:
        stride = (max(1, round(data[2] / out[2])), max(1, round(data[3] / out[3])))
        n, c, h, w = data
        return computation.conv2d(n, c, h, w, out[1], (weight[2], weight[3]), stride, c // weight[1])
    if op in ("matmul", "dense") and len(data) == len(weight) == len(out) == 2:
        return computation.matmul(out[0], out[1], data[1])
    return None


def _flops(mod: IRModule) -> float:
    from tvm.s_tir.analysis import estimate_tir_flops

    try:
        return float(estimate_tir_flops(mod))
    except Exception:  # TVM has no count for some intrinsics; the count is information, not a need
        return 0.0
