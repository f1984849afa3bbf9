"""Ansor (TVM auto_scheduler) and TenSet measurement records -> entries.

One record a line, `{"i": [task, state], "r": result, "v": version}`. The versions that were ever in use (v0.2 to
v0.6) differ in how much of the task they hold: key and target; hardware parameters; host target and layout
option; input names. Key and target are what is needed here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import msgspec

from ...primitives import TraceFormatError, from_ansor_steps
from ..schema import Task
from .ansor_workload import read_workload
from .records import Broken, ImportContext, LogEntry, TaskCache, TaskFacts, decode, find_logs, measurement, read_records

_SENTINEL = 1e10
"""The cost in seconds that Ansor writes for a program without one."""


class _TaskInput(msgspec.Struct, array_like=True):
    key: str
    target: str


class _State(msgspec.Struct, array_like=True):
    stages: Any
    steps: list[Any]


class _Input(msgspec.Struct, array_like=True):
    task: _TaskInput
    state: _State


class _Record(msgspec.Struct):
    i: _Input
    r: Any


def read_ansor(path: str | Path, context: ImportContext) -> Iterator[LogEntry | Broken]:
    """Read a log, or every log below a folder (TenSet's `measure_records/<target>/<task>.json` too).

    Broken lines have the kinds `not-json`, `wrong-shape`, `unknown-step`, `bad-steps`, `bad-result` and, for the
    rest of a damaged file, `not-readable`. `import_corpus` tells records of several devices apart.

    Raises:
        CorpusError: there is no such file, or no log below the folder.
    """
    tasks = TaskCache()
    for file in find_logs(Path(path)):
        yield from read_records(file, partial(_read, tasks=tasks, context=context))


def _read(line: str, where: str, tasks: TaskCache, context: ImportContext) -> LogEntry:
    record = decode(line, _Record)
    key, steps = record.i.task.key, record.i.state.steps
    task = tasks.get(key, lambda: _make_task(key, context.facts.get(key, TaskFacts())))
    columns = measurement(record.r, _SENTINEL)
    try:
        primitives = from_ansor_steps(steps).to_json()
    except TraceFormatError as error:
        raise Broken("unknown-step" if error.unknown else "bad-steps", error.message) from None
    trace = json.dumps(steps, separators=(",", ":"))
    program = context.program(
        "ansor",
        task,
        where,
        key=hashlib.sha256(trace.encode()).hexdigest()[:16],
        trace=trace,
        primitives=primitives,
        target=_json_text(record.i.task.target),
        **columns,
    )
    return LogEntry(task, program, key)


def _make_task(key: str, facts: TaskFacts) -> Task:
    try:
        parsed = json.loads(key)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, list) or not parsed or not isinstance(parsed[0], str):
        raise Broken("wrong-shape", f"a workload key is a JSON list led by a name: {key!r:.80}")
    workload = read_workload(parsed)
    task_id = hashlib.sha256(f"{workload.text}|{workload.detail}".encode()).hexdigest()[:16]
    return facts.task(task_id, key, workload.text, workload.name, workload.op, workload.flops)


@lru_cache(1024)
def _json_text(target: str) -> str:
    return json.dumps(target)
