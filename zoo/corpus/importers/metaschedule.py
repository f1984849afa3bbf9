"""MetaSchedule databases, of today's TVM and of older ones -> entries.

A database is a folder with `database_workload.json` (a line a workload: [structural hash, module]) and
`database_tuning_record.json` (a line a record: [workload index, [trace, seconds, target, arguments]]), packed
or not. Modules of older TVM cannot be loaded; a `workload_tvmscript.json` beside them (a list of TVMScript
texts, in the order of the workloads) stands in. So does `tasks.json` (a list of `workload`, `task_name`, `op`,
`flops`) for what the module would tell. Without both a task is known by its arguments alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from functools import lru_cache, partial
from pathlib import Path
from statistics import median
from typing import Any

from ...primitives import TraceFormatError, from_trace_json
from ..canonical import before_postproc, trace_key
from ..errors import UnknownLogError
from ..schema import Program, Task
from .base import BadRecordError, Broken, Entry, ImportContext
from .files import find_packed
from .metaschedule_tasks import Workloads
from .records import read_records

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
