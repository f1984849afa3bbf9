"""AutoTVM measurement records -> entries.

One record a line, `{"input": [target, template, args, kwargs], "config": {"entity": knobs, ...}, "result": [costs,
error number, seconds, time], "version": 0.2, "tvm_version": ...}`: the JSON form, written since TVM 0.6.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from statistics import median
from typing import Any

from ...primitives import AUTOTVM_TEMPLATES, TraceFormatError, from_autotvm
from ...primitives.autotvm_problem import Conv, Matmul, Problem, problem
from .. import computation
from ..schema import OPS, Program, Task
from .records import (
    ERRORS,
    MISSHAPEN,
    PACKED_ERRORS,
    BadRecordError,
    Broken,
    Entry,
    ImportContext,
    find_logs,
    open_lines,
    read_records,
)

_PADDING = 3
"""Position of the padding among a convolution's arguments."""


def workload_text(template: str, args: Sequence[Any]) -> str:
    """The key of a task in a log: compact JSON of `[template, args]`."""
    return json.dumps([template, args], separators=(",", ":"))


def make_task(workload: str, template: str, args: Sequence[Any], facts: Mapping[str, Any]) -> Task:
    """The task of a template and its arguments; of an unknown template it is known by its text alone.

    Tasks of one template have equal ids when they compute the same, however their arguments are spelled.

    Raises:
        TraceFormatError: the arguments are not the template's.
    """
    task = problem(template, args) if template in AUTOTVM_TEMPLATES else None
    told, detail, op, name = _identity(task, workload)
    op = facts.get("op") if facts.get("op") in OPS else op
    return Task(
        task_id=hashlib.sha256(f"{told}|{detail}|{template}".encode()).hexdigest()[:16],
        name=str(facts.get("name", f"{template}/{name}")),
        op=str(op),
        flops=float(facts.get("flops", task.flops if task else math.nan)),
        workload=workload,
        computation=told,
        networks=tuple((str(network), int(weight)) for network, weight in facts.get("networks", ())),
    )


def unpadded_tasks(file: Path) -> frozenset[str]:
    """Tasks whose arguments say `SAME` but whose knobs divide the output without padding alone.

    Some operators ignore the padding that they are given. One record seldom proves it, hence a pass over the log.
    """
    padded_fails: set[str] = set()
    plain_fails: set[str] = set()
    try:
        with open_lines(file) as lines:
            for line in lines:
                if '"SAME"' in line:
                    _judge(line, padded_fails, plain_fails)
    except PACKED_ERRORS:  # the pass that follows reports it
        return frozenset()
    return frozenset(padded_fails - plain_fails)


def without_padding(args: Sequence[Any]) -> list[Any]:
    """A convolution's arguments with padding 0."""
    return [*args[:_PADDING], [0, 0, 0, 0], *args[_PADDING + 1 :]]


def _identity(task: Problem | None, workload: str) -> tuple[str, str, str, str]:
    """Computation, what it leaves out, operator and name."""
    if isinstance(task, Matmul):
        text = f"m{task.m}n{task.n}k{task.k}-{task.weights}-{task.dtype}"
        told, detail = computation.matmul(task.m, task.n, task.k, task.batch), f"{task.weights}-{task.dtype}"
        if task.dense:
            return told, detail, "matmul", f"dense-{text}"
        return told, detail, "batch_matmul", f"batch_matmul-b{task.batch}{text}"
    if isinstance(task, Conv):
        padding, dilation = ".".join(map(str, task.padding)), "x".join(map(str, task.dilation))
        detail = f"p{padding}-d{dilation}-{task.dtype}"
        (kh, kw), (sh, sw) = task.kernel, task.stride
        sizes = f"n{task.n}c{task.c}h{task.h}w{task.w}-o{task.k}k{kh}x{kw}-s{sh}x{sw}-{detail}"
        if task.depthwise:
            return _depthwise(task), detail, "depthwise", f"depthwise_conv2d-{sizes}"
        told = computation.conv2d(task.n, task.c, task.h, task.w, task.k, task.kernel, task.stride)
        return told, detail, "conv2d", f"conv2d-{sizes}"
    digest = hashlib.sha256(workload.encode()).hexdigest()[:16]
    return computation.unknown(digest), "", "other", digest


def _depthwise(task: Conv) -> str:
    sizes = task.n, task.c, task.h, task.w
    if task.k == task.c:
        return computation.depthwise(*sizes, task.kernel, task.stride)
    return computation.conv2d(*sizes, task.k, task.kernel, task.stride, groups=task.c)


def _judge(line: str, padded_fails: set[str], plain_fails: set[str]) -> None:
    """Notes for a record's task whether its tiles of rows and columns fail to divide the output."""
    try:
        record = json.loads(line)
        template, args = record["input"][1:3]
        tiles = {name: value for name, kind, value in record["config"]["entity"] if kind == "sp"}
        rows, columns = (math.prod(tiles[name][1:]) for name in ("tile_y", "tile_x"))
        workload = workload_text(template, args)
        for fails, (height, width) in zip((padded_fails, plain_fails), _outputs(workload), strict=True):
            if rows and columns and (height % rows or width % columns):
                fails.add(workload)
    except (*MISSHAPEN, TraceFormatError):
        return  # no such record, or a broken one that the pass that follows reports


@lru_cache(4096)
def _outputs(workload: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """Height and width of the output with the padding told, and without padding."""
    template, args = json.loads(workload)
    padded, plain = problem(template, args), problem(template, without_padding(args))
    if not isinstance(padded, Conv) or not isinstance(plain, Conv) or "winograd" in template:
        raise ValueError(f"{template} has no tiles of output rows")
    return padded.out, plain.out


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
