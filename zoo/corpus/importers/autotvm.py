"""AutoTVM measurement records -> entries.

One record a line, `{"input": [target, template, args, kwargs], "config": {"entity": knobs, ...}, "result": [costs,
error number, seconds, time], "version": 0.2, "tvm_version": ...}`: the JSON form, written since TVM 0.6.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from ...primitives import TraceFormatError, from_autotvm
from ..schema import Program, Task
from .autotvm_task import make_task, unpadded_tasks, without_padding, workload_text
from .base import ERRORS, BadRecordError, Broken, Entry, ImportContext
from .files import find_logs
from .records import read_records

_SENTINEL = 1e9
"""The cost in seconds that AutoTVM writes for a program without one."""


def read_autotvm(path: str | Path, context: ImportContext) -> Iterator[Entry | Broken]:
    """Reads a log, or every log below a folder; `context.facts` is by `workload_text(template, args)`.

    Broken lines have the kinds `not-json`, `wrong-shape`, `bad-knobs` (they do not fit the task), `bad-result`
    and, for the rest of a damaged file, `not-readable`. Records of several devices are told apart by
    `import_corpus`.

    Raises:
        UnknownLogError: there is no such file, or no log below the folder.
    """
    reader = _Reader(context)
    for file in find_logs(Path(path)):
        yield from read_records(file, partial(reader.read, unpadded=unpadded_tasks(file)))


class _Reader:
    """What is remembered from line to line: the tasks met so far."""

    def __init__(self, context: ImportContext) -> None:
        self._context = context
        self._of_workload: dict[str, Task] = {}
        self._of_id: dict[str, Task] = {}

    def read(self, line: str, where: str, unpadded: frozenset[str]) -> Entry:
        target, template, args, entity, result, version = _record(line)
        workload = workload_text(template, args)
        args = without_padding(args) if workload in unpadded else args
        try:
            task = self._task(workload, template, args)
            primitives = from_autotvm(template, args, entity).to_json()
        except TraceFormatError as error:
            raise BadRecordError("bad-knobs" if error.fields["instruction"] else "wrong-shape", error.message) from None
        outcome = _result(result)
        program = Program(
            task_id=task.task_id,
            key=_key(entity),
            trace=json.dumps(entity, separators=(",", ":")),
            primitives=primitives,
            strategy="tuned",
            framework="autotvm",
            device=self._context.device,
            target=json.dumps(target),
            tvm_version=version,
            licence=self._context.licence,
            source=self._context.source or where.rpartition(":")[0],
            **outcome,
        )
        return Entry(task, program, workload)

    def _task(self, workload: str, template: str, args: list[Any]) -> Task:
        """The task of a spelling of its arguments; spellings of one computation share a task."""
        task = self._of_workload.get(workload)
        if task is None:
            task = make_task(workload, template, args, self._context.facts.get(workload, {}))
            task = self._of_workload[workload] = self._of_id.setdefault(task.task_id, task)
        return task


def _record(line: str) -> tuple[str, str, list[Any], list[Any], Any, str | None]:
    """Target, template, arguments, knobs, result and TVM's version of a line."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadRecordError("not-json", str(error)) from None
    try:
        target, template, args, *_ = record["input"]
        entity, result, version = record["config"]["entity"], record["result"], record.get("tvm_version")
    except (TypeError, ValueError, KeyError):
        raise BadRecordError("wrong-shape", "no record with an input, a config with an entity, and a result") from None
    texts = isinstance(target, str) and isinstance(template, str)
    if not (texts and isinstance(args, list) and isinstance(entity, list)):
        raise BadRecordError("wrong-shape", "an input is [target, template, arguments, ...], an entity a list of knobs")
    return target, template, args, entity, result, None if version is None else str(version)


def _result(result: Any) -> dict[str, Any]:
    """What a program's columns say of its measurement."""
    try:
        costs, error, spent, time = result
        spent, time = float(spent), float(time)
        latencies = () if error else tuple(map(float, costs))
    except (TypeError, ValueError, OverflowError):
        raise BadRecordError("bad-result", "a result is [costs, error number, seconds, time]") from None
    if type(error) is not int or (error and error not in ERRORS):
        raise BadRecordError("bad-result", f"{error!r:.40} is no error number of AutoTVM")
    if not error and not (latencies and all(math.isfinite(cost) and cost > 0 for cost in latencies)):
        raise BadRecordError("bad-result", f"no latencies: {costs!r:.80}")
    if latencies and max(latencies) >= _SENTINEL:
        latencies, error = (), 8
    kind, message = ERRORS[error] if error else (None, None)
    latency = median(latencies) if latencies else math.nan
    told = {"latencies": latencies, "latency": latency, "error": kind, "error_message": message}
    return told | {"measured_at": time, "cost_seconds": spent}


def _key(entity: list[Any]) -> str:
    """The knobs' values name a program of a task, in whatever order they stand."""
    canonical = json.dumps(sorted(entity, key=lambda knob: str(knob[0])), separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]
