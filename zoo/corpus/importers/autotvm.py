"""AutoTVM measurement records -> entries: its tasks, what tells them apart, and the padding that was truly measured.

One record a line, `{"input": [target, template, args, kwargs], "config": {"entity": knobs, ...}, "result": [costs,
error number, seconds, time], "version": 0.2, "tvm_version": ...}`: the JSON form, written since TVM 0.6.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import msgspec

from ...primitives import AUTOTVM_TEMPLATES, TraceFormatError, from_autotvm
from ...primitives.problem import Conv, Matmul, Problem, problem
from .. import computation
from ..schema import Task
from .records import (
    MISSHAPEN,
    PACKED_ERRORS,
    Broken,
    ImportContext,
    LogEntry,
    TaskCache,
    TaskFacts,
    decode,
    find_logs,
    measurement,
    open_lines,
    read_records,
)

_SENTINEL = 1e9
"""The cost in seconds that AutoTVM writes for a program without one."""
_PADDING = 3
"""Position of the padding among a convolution's arguments."""


class _Input(msgspec.Struct, array_like=True):
    target: str
    template: str
    args: list[Any]


class _Config(msgspec.Struct):
    entity: list[Any]


class _Record(msgspec.Struct):
    input: _Input
    config: _Config
    result: Any
    tvm_version: Any = None


def read_autotvm(path: str | Path, context: ImportContext) -> Iterator[LogEntry | Broken]:
    """Read a log, or every log below a folder; `context.facts` is by `workload_text(template, args)`.

    Broken lines have the kinds `not-json`, `wrong-shape`, `bad-knobs` (they do not fit the task), `bad-result`
    and, for the rest of a damaged file, `not-readable`. `import_corpus` tells records of several devices apart.

    Raises:
        CorpusError: there is no such file, or no log below the folder.
    """
    tasks = TaskCache()
    for file in find_logs(Path(path)):
        yield from read_records(file, partial(_read, tasks=tasks, context=context, unpadded=_unpadded_tasks(file)))


def _read(line: str, where: str, tasks: TaskCache, context: ImportContext, unpadded: frozenset[str]) -> LogEntry:
    record = decode(line, _Record)
    template, args, entity = record.input.template, record.input.args, record.config.entity
    workload = workload_text(template, args)
    if workload in unpadded:
        args = _without_padding(args)
    try:
        task = tasks.get(
            workload, lambda: _make_task(workload, template, args, context.facts.get(workload, TaskFacts()))
        )
        primitives = from_autotvm(template, args, entity).to_json()
    except TraceFormatError as error:
        raise Broken("bad-knobs" if error.fields["instruction"] else "wrong-shape", error.message) from None
    program = context.program(
        "autotvm",
        task,
        where,
        key=_key(entity),
        trace=json.dumps(entity, separators=(",", ":")),
        primitives=primitives,
        target=json.dumps(record.input.target),
        tvm_version=None if record.tvm_version is None else str(record.tvm_version),
        **measurement(record.result, _SENTINEL),
    )
    return LogEntry(task, program, workload)


def _key(entity: list[Any]) -> str:
    """Return the name of a program in its task: the knobs' values, in whatever order they stand."""
    canonical = json.dumps(sorted(entity, key=lambda knob: str(knob[0])), separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def workload_text(template: str, args: Sequence[Any]) -> str:
    """Return the key of a task in a log: compact JSON of `[template, args]`."""
    return json.dumps([template, args], separators=(",", ":"))


def _make_task(workload: str, template: str, args: Sequence[Any], facts: TaskFacts) -> Task:
    """Return the task of a template and its arguments; of an unknown template it is known by its text alone.

    Tasks of one template have equal ids when they compute the same, however their arguments are spelled.

    Raises:
        TraceFormatError: the arguments are not the template's.
    """
    task = problem(template, args) if template in AUTOTVM_TEMPLATES else None
    text, detail, op, name = _identity(task, workload)
    task_id = hashlib.sha256(f"{text}|{detail}|{template}".encode()).hexdigest()[:16]
    return facts.task(task_id, workload, text, f"{template}/{name}", op, task.flops if task else math.nan)


def _unpadded_tasks(file: Path) -> frozenset[str]:
    """Return the tasks whose arguments say `SAME` but whose knobs divide the output without padding alone.

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


def _without_padding(args: Sequence[Any]) -> list[Any]:
    """Return a convolution's arguments with padding 0."""
    return [*args[:_PADDING], [0, 0, 0, 0], *args[_PADDING + 1 :]]


def _identity(task: Problem | None, workload: str) -> tuple[str, str, str, str]:
    """Return computation, what it leaves out, operator and name."""
    if isinstance(task, Matmul):
        sizes, stored = f"m{task.m}n{task.n}k{task.k}", f"{task.weights}-{task.dtype}"
        text = computation.matmul(task.m, task.n, task.k, task.batch)
        if task.dense:
            return text, stored, "matmul", f"dense-{sizes}-{stored}"
        return text, stored, "batch_matmul", f"batch_matmul-b{task.batch}{sizes}-{stored}"
    if isinstance(task, Conv):
        padding, dilation = ".".join(map(str, task.padding)), "x".join(map(str, task.dilation))
        detail = f"p{padding}-d{dilation}-{task.dtype}"
        (kh, kw), (sh, sw) = task.kernel, task.stride
        name = f"n{task.n}c{task.c}h{task.h}w{task.w}-o{task.k}k{kh}x{kw}-s{sh}x{sw}-{detail}"
        data = task.n, task.c, task.h, task.w
        if task.depthwise and task.k == task.c:
            text = computation.depthwise(*data, task.kernel, task.stride)
        else:
            groups = task.c if task.depthwise else 1
            text = computation.conv2d(*data, task.k, task.kernel, task.stride, groups)
        op, prefix = ("depthwise", "depthwise_conv2d") if task.depthwise else ("conv2d", "conv2d")
        return text, detail, op, f"{prefix}-{name}"
    digest = hashlib.sha256(workload.encode()).hexdigest()[:16]
    return computation.unknown(digest), "", "other", digest


def _judge(line: str, padded_fails: set[str], plain_fails: set[str]) -> None:
    """Note for a record's task whether its tiles of rows and columns fail to divide the output."""
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
    """Return height and width of the output with the padding of the arguments, and without padding."""
    template, args = json.loads(workload)
    padded, plain = problem(template, args), problem(template, _without_padding(args))
    if not isinstance(padded, Conv) or not isinstance(plain, Conv) or "winograd" in template:
        raise ValueError(f"{template} has no tiles of output rows")
    return padded.out, plain.out
