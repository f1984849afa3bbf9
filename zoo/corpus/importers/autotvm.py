"""AutoTVM measurement records -> entries: its tasks, what tells them apart, and the padding that was truly measured.

One record a line, `{"input": [target, template, args, kwargs], "config": {"entity": knobs, ...}, "result": [costs,
error number, seconds, time], "version": 0.2, "tvm_version": ...}`: the JSON form, written since TVM 0.6.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from ...primitives import AUTOTVM_TEMPLATES, TraceFormatError, from_autotvm
from ...primitives.problem import Matmul, Problem, problem
from .. import computation
from ..schema import Task
from .records import (
    MISSHAPEN,
    PACKED_ERRORS,
    Broken,
    ImportContext,
    LogEntry,
    Result,
    TaskFacts,
    canonical,
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
    result: Result
    tvm_version: str | float | None = None


def read_autotvm(path: str | Path, context: ImportContext) -> Iterator[LogEntry | Broken]:
    """Read a log, or every log below a folder; `context.facts` is by `canonical([template, args])`.

    Broken lines have the kinds `not-json`, `wrong-shape`, `bad-knobs` (they do not fit the task), `bad-result`
    and, for the rest of a damaged file, `not-readable`. `import_corpus` tells records of several devices apart.

    Raises:
        CorpusError: there is no such file, or no log below the folder.
    """
    for file in find_logs(Path(path)):
        yield from read_records(file, _Reader(context, _unpadded_tasks(file)))


class _Reader:
    """Records of one file as entries. `unpadded`: its tasks that were measured without padding."""

    def __init__(self, context: ImportContext, unpadded: frozenset[str]) -> None:
        self._context, self._unpadded = context, unpadded
        self._tasks: dict[str, Task] = {}

    def __call__(self, line: str, where: str) -> LogEntry:
        record = decode(line, _Record)
        template, args, entity = record.input.template, record.input.args, record.config.entity
        workload = canonical([template, args])
        if workload in self._unpadded:
            args = _without_padding(args)
        try:
            if workload not in self._tasks:
                facts = self._context.facts.get(workload, TaskFacts())
                self._tasks[workload] = _make_task(workload, template, args, facts)
            primitives = from_autotvm(template, args, entity).to_json()
        except TraceFormatError as error:
            raise Broken("bad-knobs" if error.fields["instruction"] else "wrong-shape", error.message) from None
        task = self._tasks[workload]
        program = self._context.program(
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
        return LogEntry(task, program)


def _key(entity: list[Any]) -> str:
    """Return the name of a program in its task: the knobs' values, in whatever order they stand."""
    canonical = json.dumps(sorted(entity, key=lambda knob: str(knob[0])), separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def _make_task(workload: str, template: str, args: Sequence[Any], facts: TaskFacts) -> Task:
    """Return the task of a template and its arguments; of an unknown template it is known by its text alone.

    Tasks of one template have equal ids when they compute the same, however their arguments are spelled.

    Raises:
        TraceFormatError: the arguments are not the template's.
    """
    task = problem(template, args) if template in AUTOTVM_TEMPLATES else None
    op, text, detail, name = _identity(task, workload)
    task_id = hashlib.sha256(f"{text}|{detail}|{template}".encode()).hexdigest()[:16]
    return facts.task(task_id, workload, text, f"{template}/{name}", op, task.flops if task else math.nan)


def _unpadded_tasks(file: Path) -> frozenset[str]:
    """Return the tasks whose arguments say `SAME` but whose knobs fit the output without padding alone.

    Some operators ignore the padding that they are given. One record seldom proves it, hence a pass over the log.
    """
    only: tuple[set[str], set[str]] = set(), set()  # tasks with a record that fits without padding alone; with it alone
    with suppress(*PACKED_ERRORS), open_lines(file) as lines:  # the pass that follows reports it
        for line in lines:
            if '"SAME"' in line and "winograd" not in line:
                with suppress(Broken, *MISSHAPEN):
                    record = decode(line, _Record)
                    template, args, entity = record.input.template, record.input.args, record.config.entity
                    plain, padded = (_fits(template, each, entity) for each in (_without_padding(args), args))
                    if plain != padded:
                        only[padded].add(canonical([template, args]))
    return frozenset(only[False] - only[True])


def _fits(template: str, args: list[Any], entity: list[Any]) -> bool:
    try:
        from_autotvm(template, args, entity)
    except TraceFormatError:
        return False
    return True


def _without_padding(args: Sequence[Any]) -> list[Any]:
    """Return a convolution's arguments with padding 0."""
    return [*args[:_PADDING], [0, 0, 0, 0], *args[_PADDING + 1 :]]


def _identity(task: Problem | None, workload: str) -> tuple[str, str, str, str]:
    """Return operator, computation, what that leaves out, and name."""
    if task is None:
        digest = hashlib.sha256(workload.encode()).hexdigest()[:16]
        return "other", computation.unknown(digest), "", digest
    op, text = computation.of_problem(task)
    if isinstance(task, Matmul):
        detail = f"{task.weights}-{task.dtype}"
        prefix = "dense-" if task.dense else f"batch_matmul-b{task.batch}"
        return op, text, detail, f"{prefix}m{task.m}n{task.n}k{task.k}-{detail}"
    padding, dilation = ".".join(map(str, task.padding)), "x".join(map(str, task.dilation))
    detail = f"p{padding}-d{dilation}-{task.dtype}"
    (kh, kw), (sh, sw) = task.kernel, task.stride
    prefix = "depthwise_conv2d" if task.depthwise else "conv2d"
    sizes = f"n{task.n}c{task.c}h{task.h}w{task.w}-o{task.k}k{kh}x{kw}-s{sh}x{sw}"
    return op, text, detail, f"{prefix}-{sizes}-{detail}"
