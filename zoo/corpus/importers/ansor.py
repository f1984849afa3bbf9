"""Ansor (TVM auto_scheduler) and TenSet measurement records -> entries.

One record a line, `{"i": [task, state], "r": result, "v": version}`. The versions that were ever in use (v0.2 to
v0.6) differ in how much of the task they tell: key and target; hardware parameters; host target and layout
option; input names. Key and target are what is needed here.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any

from ...primitives import TraceFormatError, from_ansor_steps
from ..schema import OPS, Program, Task
from .ansor_workload import read_workload
from .records import ERRORS, BadRecordError, Broken, Entry, ImportContext, find_logs, read_records

_SENTINEL = 1e10
"""The cost in seconds that Ansor writes for a program without one."""


def read_ansor(path: str | Path, context: ImportContext) -> Iterator[Entry | Broken]:
    """Reads a log, or every log below a folder (TenSet's `measure_records/<target>/<task>.json` too).

    Broken lines have the kinds `not-json`, `wrong-shape`, `unknown-step`, `bad-steps`, `bad-result` and, for the
    rest of a damaged file, `not-readable`. Records of several devices are told apart by `import_corpus`.

    Raises:
        UnknownLogError: there is no such file, or no log below the folder.
    """
    reader = _Reader(context)
    for file in find_logs(Path(path)):
        yield from read_records(file, reader.read)


class _Reader:
    """What is remembered from line to line: the tasks met so far."""

    def __init__(self, context: ImportContext) -> None:
        self._context = context
        self._of_key: dict[str, Task] = {}
        self._of_id: dict[str, Task] = {}

    def read(self, line: str, where: str) -> Entry:
        key, target, steps, result = _record(line)
        task = self._task(key)
        latencies, error, cost, time = _result(result)
        primitives, trace = _primitives(steps)
        kind, message = ERRORS[error] if error else (None, None)
        program = Program(
            task_id=task.task_id,
            key=hashlib.sha256(trace.encode()).hexdigest()[:16],
            trace=trace,
            primitives=primitives,
            strategy="tuned",
            latencies=latencies,
            latency=median(latencies) if latencies else math.nan,
            error=kind,
            error_message=message,
            framework="ansor",
            device=self._context.device,
            target=_json_text(target),
            measured_at=time,
            cost_seconds=cost,
            licence=self._context.licence,
            source=self._context.source or where.rpartition(":")[0],
        )
        return Entry(task, program, key)

    def _task(self, key: str) -> Task:
        task = self._of_key.get(key)
        if task is None:
            task = _make_task(key, self._context.facts.get(key, {}))
            task = self._of_key[key] = self._of_id.setdefault(task.task_id, task)
        return task


def _record(line: str) -> tuple[str, str, list[Any], list[Any]]:
    """Workload key, target, steps and result of a line."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadRecordError("not-json", str(error)) from None
    try:
        (key, target, *_), (_, steps, *_) = record["i"]
        result = record["r"]
    except (TypeError, ValueError, KeyError, IndexError):
        raise BadRecordError("wrong-shape", "no record of the form {'i': [task, state], 'r': result}") from None
    if not (isinstance(key, str) and isinstance(target, str) and isinstance(steps, list)):
        raise BadRecordError("wrong-shape", "a task is [workload key, target, ...], a state [stages, steps]")
    return key, target, steps, result


def _result(result: Any) -> tuple[tuple[float, ...], int, float, float]:
    """Latencies (none when failed), error number, seconds spent and Unix time."""
    try:
        costs, error, spent, time = result
        costs, spent, time = tuple(float(cost) for cost in costs), float(spent), float(time)
    except (TypeError, ValueError, OverflowError):
        raise BadRecordError("bad-result", "a result is [costs, error number, seconds, time]") from None
    if error != 0:
        if type(error) is not int or error not in ERRORS:
            raise BadRecordError("bad-result", f"{error!r:.40} is no error number of Ansor")
        return (), error, spent, time
    if not costs or not all(math.isfinite(cost) and cost > 0 for cost in costs):
        raise BadRecordError("bad-result", f"no latencies: {costs!r:.80}")
    return ((), 8, spent, time) if max(costs) >= _SENTINEL else (costs, 0, spent, time)


def _primitives(steps: list[Any]) -> tuple[str, str]:
    """The steps in the common language and as canonical JSON."""
    try:
        return from_ansor_steps(steps).to_json(), json.dumps(steps, separators=(",", ":"))
    except TraceFormatError as error:
        raise BadRecordError("unknown-step" if error.unknown else "bad-steps", error.message) from None


def _make_task(key: str, facts: Mapping[str, Any]) -> Task:
    try:
        parsed = json.loads(key)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, list) or not parsed or not isinstance(parsed[0], str):
        raise BadRecordError("wrong-shape", f"a workload key is a JSON list led by a name: {key!r:.80}")
    workload = read_workload(parsed)
    told, flops = facts.get("op"), facts.get("flops")
    return Task(
        task_id=hashlib.sha256(f"{workload.text}|{workload.detail}".encode()).hexdigest()[:16],
        name=str(facts.get("name", workload.name)),
        # A task file may know less than the key says: "sub-graph" for a convolution, no operations.
        op=told if told in OPS else workload.op,
        flops=float(workload.flops if flops is None else flops),
        workload=key,
        computation=workload.text,
        networks=tuple((str(network), int(weight)) for network, weight in facts.get("networks", ())),
    )


@lru_cache(1024)
def _json_text(target: str) -> str:
    return json.dumps(target)
