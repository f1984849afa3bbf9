"""MetaSchedule databases, of today's TVM and of older ones, and logs of measured traces -> entries.

A database is `database_tuning_record.json` (a line a record: [workload index, [trace, seconds, target, arguments]])
with `database_workload.json` beside it (a line a workload: [structural hash, module]), packed or not. Modules of older
TVM cannot be loaded; a `workload_tvmscript.json` beside them (a list of TVMScript texts, in the order of the workloads)
stands in. So does `tasks.json` (a list of `workload`, `task_name`, `op`, `flops`) for what the module would tell.
Without both, or without the workloads, a task is known by a hash, which is its name.

Other logs have a line a program: `{"trace": ..., "target": ..., "latency": seconds}`, or these three as a list. `task`
may name the task; else it is known by what a trace shows of it.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from ...primitives import TraceFormatError, from_trace_json
from ...primitives.instructions import RENAMED
from .. import computation
from ..canonical import before_postproc, trace_key
from ..schema import CorpusError, Task
from ..tir import computation_of_module, flops_of, operator_class, task_id
from .records import (
    MISSHAPEN,
    PACKED_ERRORS,
    BadLine,
    ImportContext,
    LineReader,
    TaskFacts,
    compact,
    decode,
    digest,
    find_packed,
    latencies,
    open_lines,
    open_text,
    timed,
)
from .tvmscript import read_script

if TYPE_CHECKING:
    from tvm import IRModule

SCRIPTS, TASKS = "workload_tvmscript.json", "tasks.json"
# Seconds that TVM writes for a program that could not be built or run.
_SENTINEL = 1e9
_LARGEST = 64 << 20  # characters of each file beside the database; the script of a fused operator has 20,000
_TILES = "SamplePerfectTile"

_Trace = tuple[list[Any], list[Any]]


class _Run(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    trace: _Trace
    seconds: list[Any] | None
    target: dict[str, Any] | str
    arguments: list[Any]


class _Record(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    workload: int
    run: _Run


class _MeasuredTrace(msgspec.Struct):
    """A line of a log that is no database; `latency` in seconds, several for repeats, null where it failed."""

    trace: _Trace
    target: dict[str, Any] | str
    latency: float | list[Any] | None
    task: str | None = None


class _ListedTrace(_MeasuredTrace, array_like=True, forbid_unknown_fields=True):
    pass


class _TaskRow(msgspec.Struct):
    """A row of `tasks.json`."""

    workload: int
    task_name: str | None = None
    op: str | None = None
    flops: float | None = None


def metaschedule_reader(file: Path, name: str, context: ImportContext) -> LineReader:
    """Return the reader of a log or database; the facts are by structural hash, the text that leads a workload's line,
    or by the `task` of a line.

    Bad lines are also `unknown-workload`, `unknown-instruction` and `bad-trace`. A program without a time is a
    failed one (`invalid`): the log does not say why.
    """
    # Without workloads nothing tells the tasks of two databases apart but where they are.
    tasks = _LogTasks(file, name, context)

    def read(line: str) -> tuple[Task, dict[str, Any]]:
        if re.match(r"\s*\[\s*[-\d]", line):
            record = decode(line, _Record)
            run, costs = record.run, record.run.seconds
            find_task = partial(tasks.of_database, record.workload, record.run.arguments)
        else:
            run = decode(line, _MeasuredTrace if line.lstrip().startswith("{") else _ListedTrace)
            costs = [run.latency] if isinstance(run.latency, float) else run.latency
            find_task = partial(tasks.of_trace, run)
        # A record that was never measured has no times.
        seconds, trace = latencies(costs, _SENTINEL) if costs else (), modern_trace(run.trace)
        try:
            # Cut first: what the postprocessors derive differs from program to program, what is before it hardly does.
            primitives = from_trace_json(before_postproc(trace)).to_json()
        except TraceFormatError as error:
            raise BadLine("unknown-instruction" if error.unknown else "bad-trace", error.message) from None
        columns = timed(seconds, "invalid", "the build or the run failed; the log does not say which")
        columns |= {"key": trace_key(trace), "trace": compact(trace), "primitives": primitives}
        return find_task(), columns | {"target": json.dumps(run.target, sort_keys=True)}

    return read


def modern_trace(trace: list[Any] | tuple[list[Any], list[Any]]) -> list[Any]:
    """Return a trace of TVM 0.16 or later in the names and attributes of TVM 0.27, which applies it."""
    instructions, decisions = trace
    modern = []
    for name, inputs, attributes, outputs in instructions:
        lacks = name == "Split" and len(attributes) == 1  # disable_predication, which came later
        modern.append([RENAMED.get(name, name), inputs, [*attributes, 0] if lacks else attributes, outputs])
    return [modern, decisions]


class _LogTasks:
    """The tasks of a log, each made when it is first asked for, from the log and the files in its folder."""

    def __init__(self, file: Path, name: str, context: ImportContext) -> None:
        self._name, self._facts = name, context.facts
        workloads = file.name.partition(".")[0].replace("tuning_record", "workload") + ".json"
        self._lines = _beside(file.parent, workloads, _read_lines) if "tuning_record" in file.name else None
        self._scripts = _beside(file.parent, SCRIPTS, partial(_read_json, form=list[str])) or []
        rows: list[_TaskRow] = _beside(file.parent, TASKS, partial(_read_json, form=list[_TaskRow])) or []
        self._named = {row.workload: TaskFacts(row.task_name, row.op, row.flops) for row in rows}
        self._tasks: dict[int | str, Task] = {}

    def of_trace(self, run: _MeasuredTrace) -> Task:
        """Return the task of a measured trace."""
        name = run.task
        if not name:  # what the trace shows of it: the blocks that it names, and the extents of the loops that it tiles
            instructions, decisions = before_postproc(run.trace)
            blocks = {attributes[0] for kind, _, attributes, _ in instructions if kind in ("GetBlock", "GetSBlock")}
            tiled = (tiles for index, tiles in decisions if instructions[index][0] == _TILES)
            name = json.dumps([sorted(blocks), sorted(math.prod(map(int, tiles[:16])) for tiles in tiled)])
        if name not in self._tasks:
            self._tasks[name] = _hashed(name, name, self._facts.get(name, TaskFacts(run.task)))
        return self._tasks[name]

    def of_database(self, index: int, arguments: list[Any]) -> Task:
        """Return the task of a database's record with these arguments; raise BadLine where its workload is none."""
        if self._lines is not None and not 0 <= index < len(self._lines):
            raise BadLine("unknown-workload", f"there is no workload {index}")
        if index not in self._tasks:
            try:
                self._tasks[index] = self._make(index, arguments)
            except (*MISSHAPEN, RuntimeError) as error:  # the last of TVM's own
                raise BadLine("unknown-workload", f"workload {index} cannot be read: {error!r:.200}") from error
        return self._tasks[index]

    def _make(self, index: int, arguments: list[Any]) -> Task:
        mod, structure = None, f"{self._name}:{index}"
        if self._lines is not None:
            structure, packed = json.loads(self._lines[index])
            mod = self._module(index, packed)
        facts = self._facts.get(str(structure)) or self._named.get(index, TaskFacts())
        if mod is None:
            shown = compact(arguments)
            return _hashed(f"{structure} {shown}", shown, facts)
        import tvm

        text, name = computation_of_module(mod), facts.name or f"workload-{index}"
        op, flops, workload = operator_class(mod, text), facts.flops or flops_of(mod), str(tvm.ir.save_json(mod))
        return Task(task_id(mod), name, op, flops, workload, text, facts.networks)

    def _module(self, index: int, packed: str) -> IRModule | None:
        """Return the module, from the database if this TVM can, else from the script beside it."""
        import tvm

        graph = base64.b64decode(packed)[8:].decode() if not packed.lstrip().startswith("{") else packed
        if '"root_index"' in graph[:200]:
            return cast("IRModule", tvm.ir.load_json(graph))
        return read_script(self._scripts[index]) if index < len(self._scripts) else None


def _hashed(identity: str, problem: str, facts: TaskFacts) -> Task:
    """Return a task without a module; those of one problem count as one computation."""
    return facts.task(identity, identity, computation.unknown(digest(problem)), digest(identity), "other", 0.0)


def _beside(folder: Path, name: str, read: Callable[[Path], Any]) -> Any:
    """Return what is read of a file beside a log; None where there is none."""
    file = find_packed(folder, name)
    try:
        return read(file) if file else None
    except (*PACKED_ERRORS, ValueError, RecursionError) as error:
        remedy = "correct it or move it away"
        raise CorpusError(f"{file} cannot be read: {error}", remedy=remedy, path=str(file)) from error


def _read_lines(file: Path) -> list[str]:
    with open_lines(file) as lines:
        return [line for line in lines if line.strip()]


def _read_json(file: Path, form: Any) -> Any:
    with open_text(file) as stream:
        text = stream.read(_LARGEST + 1)
    if len(text) > _LARGEST:
        raise ValueError(f"it has more than {_LARGEST} characters")
    return msgspec.json.decode(text, type=form)
