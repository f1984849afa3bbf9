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
from collections.abc import Iterator, Mapping
from functools import lru_cache, partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, cast

from ...primitives import TraceFormatError, from_trace_json
from .. import computation
from ..canonical import before_postproc, trace_key
from ..schema import OPS, CorpusError, Program, Task, UnknownLogError
from ..tir import class_of_computation, computation_of_module, operator_class
from .records import (
    MISSHAPEN,
    PACKED_ERRORS,
    BadRecordError,
    Broken,
    Entry,
    ImportContext,
    check_texts,
    find_packed,
    open_lines,
    open_text,
    read_records,
)
from .tvmscript import read_script

if TYPE_CHECKING:
    from tvm import IRModule


SCRIPTS, TASKS = "workload_tvmscript.json", "tasks.json"
_LARGEST = 64 << 20  # characters of each; the script of a fused operator has 20,000


class Workloads:
    """Tasks by the workload index that the records name, each made when it is first asked for.

    Args:
        folder: the database; files beside it are looked for here.
        file: its workloads.
        facts: by structural hash (the text that leads a workload's line), any of `name`, `op`, `flops`,
            `networks`.
    """

    def __init__(self, folder: Path, file: Path, facts: Mapping[str, Mapping[str, Any]]) -> None:
        try:
            with open_lines(file) as lines:
                self._lines = [line for line in lines if line.strip()]
        except PACKED_ERRORS as error:
            raise _unreadable(file, error) from error
        self._scripts = _beside(folder, SCRIPTS)
        told = (row for row in _beside(folder, TASKS) if isinstance(row, dict))
        self._told = {row["workload"]: row for row in told if isinstance(row.get("workload"), int)}
        self._facts = facts
        self._tasks: dict[int, Task] = {}

    def task(self, index: int, arguments: list[Any]) -> Task:
        """The task of a record with these arguments.

        Raises:
            BadRecordError: there is no such workload, or it cannot be read.
        """
        if not 0 <= index < len(self._lines):
            raise BadRecordError("unknown-workload", f"there is no workload {index}")
        if index not in self._tasks:
            try:
                self._tasks[index] = self._make(index, arguments)
            except (*MISSHAPEN, RuntimeError) as error:  # the last of TVM's own
                raise BadRecordError("unknown-workload", f"workload {index} cannot be read: {error!r:.200}") from error
        return self._tasks[index]

    def _make(self, index: int, arguments: list[Any]) -> Task:
        shash, packed = json.loads(self._lines[index])
        told = dict(self._told.get(index, {}))
        told |= {"name": told.get("task_name", f"workload-{index}")} | dict(self._facts.get(str(shash), {}))
        mod = self._module(index, packed)
        if mod is None:
            return _without_module(told, arguments)
        import tvm
        from tvm_ffi import structural_hash

        text = computation_of_module(mod)
        return Task(
            task_id=f"{structural_hash(mod) & (2**64 - 1):016x}",
            name=str(told["name"]),
            op=operator_class(mod, text),
            flops=float(told.get("flops", 0.0)) or _flops(mod),
            workload=str(tvm.ir.save_json(mod)),
            computation=text,
            networks=_networks(told),
        )

    def _module(self, index: int, packed: str) -> IRModule | None:
        """The module, from the database if this TVM can, else from the script beside it."""
        import tvm

        graph = base64.b64decode(packed)[8:].decode() if not packed.lstrip().startswith("{") else packed
        if '"root_index"' in graph[:200]:
            return cast("IRModule", tvm.ir.load_json(graph))
        if index >= len(self._scripts):
            return None
        return read_script(self._scripts[index])


def _beside(folder: Path, name: str) -> list[Any]:
    file = find_packed(folder, name)
    if file is None:
        return []
    try:
        with open_text(file) as text:
            told = text.read(_LARGEST + 1)
        if len(told) > _LARGEST:
            raise ValueError(f"it has more than {_LARGEST} characters")
        rows = json.loads(told)
        check_texts(told)
    except (*PACKED_ERRORS, ValueError, RecursionError) as error:
        raise _unreadable(file, error) from error
    return rows if isinstance(rows, list) else []


def _unreadable(file: Path, error: Exception) -> CorpusError:
    return CorpusError(f"{file} cannot be read: {error}", remedy="mend it or move it away", path=str(file))


def _without_module(told: Mapping[str, Any], arguments: list[Any]) -> Task:
    op = told.get("op", "other")
    shapes = [[int(extent) for extent in argument[2]] for argument in arguments if len(argument) == 3]
    shown = json.dumps(arguments, separators=(",", ":"))
    text = _of_shapes(op, shapes) or computation.unknown(hashlib.sha256(shown.encode()).hexdigest()[:16])
    return Task(
        task_id=hashlib.sha256(f"{text}|{shown}|{told['name']}".encode()).hexdigest()[:16],
        name=str(told["name"]),
        op=_operator(told, text),
        flops=float(told.get("flops", 0.0)),
        workload=shown,
        computation=text,
        networks=_networks(told),
    )


def _of_shapes(op: str, shapes: list[list[int]]) -> str | None:
    """The computation of inputs and output (last), where the operator is known; NCHW and NT, as in Relay."""
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


def _operator(told: Mapping[str, Any], text: str) -> str:
    return class_of_computation(text) or next((word for word in OPS if word == told.get("op")), "other")


def _networks(told: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    return tuple((str(name), int(count)) for name, count in told.get("networks", ()))


def _flops(mod: IRModule) -> float:
    from tvm.s_tir.analysis import estimate_tir_flops

    try:
        return float(estimate_tir_flops(mod))
    except Exception:  # TVM has no count for some intrinsics; the count is information, not a need
        return 0.0


RECORDS, WORKLOADS = "database_tuning_record.json", "database_workload.json"
# What TVM writes as the time of a program that could not be built or run.
SENTINEL = 1e9
_RENAMED = {"GetBlock": "GetSBlock", "BlockizeBlocks": "Blockize"}


def read_metaschedule(path: str | Path, context: ImportContext) -> Iterator[Entry | Broken]:
    """Read a database folder.

    Broken records have the kinds `not-json`, `wrong-shape`, `unknown-workload`, `unknown-instruction`,
    `bad-trace`, `bad-times` and, for the rest of a damaged file, `not-readable`. A program without a time is a
    failed one (`invalid`): the database does not say why.

    Raises:
        UnknownLogError: the folder is no database.
    """
    folder = Path(path)
    files = [find_packed(folder, name) for name in (WORKLOADS, RECORDS)]
    if files[0] is None or files[1] is None:
        raise UnknownLogError(
            f"{folder} is no MetaSchedule database",
            remedy=f"name a folder with {WORKLOADS} and {RECORDS}",
            path=str(folder),
        )
    workloads = Workloads(folder, files[0], context.facts)
    yield from read_records(files[1], partial(_read, workloads=workloads, context=context))


def modern_trace(trace: list[Any]) -> list[Any]:
    """A trace of TVM 0.16 or later in the names and attributes of TVM 0.27, which applies it."""
    instructions, decisions = trace
    return [[_modern(*instruction) for instruction in instructions], decisions]


def _modern(name: str, inputs: list[Any], attributes: list[Any], outputs: list[Any]) -> list[Any]:
    if name == "Split" and len(attributes) == 1:
        attributes = [*attributes, 0]  # disable_predication, which came later
    return [_RENAMED.get(name, name), inputs, attributes, outputs]


def _read(line: str, where: str, workloads: Workloads, context: ImportContext) -> Entry:
    index, trace, times, target, arguments = _record(line)
    task = workloads.task(index, arguments)
    return Entry(task, _program(task, trace, times, target, context, where))


def _record(line: str) -> tuple[int, list[Any], list[float] | None, Any, list[Any]]:
    try:
        index, (trace, times, target, arguments) = json.loads(line)
        modern = modern_trace(trace)
    except json.JSONDecodeError as error:
        raise BadRecordError("not-json", str(error)) from None
    except (TypeError, ValueError, RecursionError):
        raise BadRecordError("wrong-shape", "a record is [workload, [trace, times, target, arguments]]") from None
    if not isinstance(index, int) or not isinstance(arguments, list):
        raise BadRecordError("wrong-shape", "the workload is a number, the arguments are a list")
    return index, modern, times, target, arguments


def _program(task: Task, trace: list[Any], times: Any, target: Any, context: ImportContext, where: str) -> Program:
    seconds = _seconds(times)
    failed = not seconds
    try:
        # Cut first: what the postprocessors derive differs from program to program, what is before it hardly does.
        primitives = from_trace_json(before_postproc(trace)).to_json()
    except TraceFormatError as error:
        raise BadRecordError("unknown-instruction" if error.unknown else "bad-trace", error.message) from None
    return Program(
        task_id=task.task_id,
        key=trace_key(trace),
        trace=json.dumps(trace, separators=(",", ":")),
        strategy="tuned",
        latencies=seconds,
        latency=math.nan if failed else median(seconds),
        device=context.device,
        target=_text(json.dumps(target, sort_keys=True)),
        error="invalid" if failed else None,
        error_message="the build or the run failed; the database does not say which" if failed else None,
        primitives=primitives,
        licence=context.licence,
        source=context.source or where.rpartition(":")[0],
    )


def _seconds(times: Any) -> tuple[float, ...]:
    """The repeats; none for a failed program. A record that was never measured has no times."""
    try:
        seconds = tuple(float(value) for value in times or ())
    except (TypeError, ValueError):
        raise BadRecordError("bad-times", f"no times: {times!r:.80}") from None
    if not all(math.isfinite(value) and value > 0 for value in seconds):
        raise BadRecordError("bad-times", f"no times: {times!r:.80}")
    return () if any(value >= SENTINEL for value in seconds) else seconds


@lru_cache(256)
def _text(target: str) -> str:
    """One object for equal targets, of which a log repeats one on every line."""
    return target
