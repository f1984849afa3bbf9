"""AutoTVM measurement records -> entries: its tasks, what tells them apart, and the padding that was truly measured.

One record a line, `{"input": [target, template, args, kwargs], "config": {"entity": knobs, ...}, "result": [costs,
error number, seconds, time], "version": 0.2, "tvm_version": ...}`: the JSON form, written since TVM 0.6.
"""

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from ...primitives import TraceFormatError, from_autotvm
from ...primitives.autotvm import AUTOTVM_TEMPLATES
from ...primitives.problem import Matmul, problem
from .. import computation
from ..schema import Task
from .records import (
    MISSHAPEN,
    PACKED_ERRORS,
    BadLine,
    ImportContext,
    LineReader,
    MeasureResult,
    TaskFacts,
    canonical,
    compact,
    decode,
    digest,
    open_lines,
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
    result: MeasureResult
    tvm_version: str | float | None = None


def autotvm_reader(file: Path, _name: str, context: ImportContext) -> LineReader:
    """Return the reader of a log; facts are by `canonical([template, args])`.

    Bad lines are also `bad-knobs`: they do not fit the task.
    """
    unpadded = _unpadded_tasks(file)

    @cache
    def task_of(workload: str) -> Task:
        template, args = json.loads(workload)
        facts = context.facts.get(workload, TaskFacts())
        return _make_task(workload, template, _without_padding(args) if workload in unpadded else args, facts)

    def read(line: str) -> tuple[Task, dict[str, Any]]:
        record = decode(line, _Record)
        template, args, entity = record.input.template, record.input.args, record.config.entity
        workload = canonical([template, args])
        try:
            task = task_of(workload)
            args = _without_padding(args) if workload in unpadded else args
            primitives = from_autotvm(template, args, entity).to_json()
        except TraceFormatError as error:
            raise BadLine("bad-knobs" if error.fields["instruction"] else "wrong-shape", error.message) from None
        return task, record.result.columns(_SENTINEL) | {
            # A program is named by the knobs' values, in whatever order they stand.
            "key": digest(compact(sorted(entity, key=lambda knob: str(knob[0])))),
            "trace": compact(entity),
            "primitives": primitives,
            "target": compact(record.input.target),
            "tvm_version": None if record.tvm_version is None else str(record.tvm_version),
        }

    return read


def _make_task(workload: str, template: str, args: Sequence[Any], facts: TaskFacts) -> Task:
    """Return the task of a template and its arguments; of an unknown template it is known by its text alone.

    Tasks of one template have equal ids when they compute the same, however their arguments are spelled.

    Raises:
        TraceFormatError: the arguments are not the template's.
    """
    task = problem(template, args) if template in AUTOTVM_TEMPLATES else None
    if task is None:
        name, op, detail, flops = digest(workload), "other", "", math.nan
        text = computation.unknown(name)
    else:
        (op, text), flops = computation.of_problem(task), task.flops
        if isinstance(task, Matmul):
            detail = f"{task.weights}-{task.dtype}"
            kind = "dense-" if task.dense else f"batch_matmul-b{task.batch}"
            name = f"{kind}m{task.m}n{task.n}k{task.k}-{detail}"
        else:
            padding, dilation = ".".join(map(str, task.padding)), "x".join(map(str, task.dilation))
            detail = f"p{padding}-d{dilation}-{task.dtype}"
            (kh, kw), (sh, sw) = task.kernel, task.stride
            sizes = f"n{task.n}c{task.c}h{task.h}w{task.w}-o{task.k}k{kh}x{kw}-s{sh}x{sw}"
            name = f"{'depthwise_' * task.depthwise}conv2d-{sizes}-{detail}"
    return facts.task(f"{text}|{detail}|{template}", workload, text, f"{template}/{name}", op, flops)


def _unpadded_tasks(file: Path) -> frozenset[str]:
    """Return the tasks whose arguments say `SAME` but whose knobs fit the output without padding alone.

    Some operators ignore the padding that they are given. One record seldom proves it, hence a pass over the log.
    """
    only: tuple[set[str], set[str]] = set(), set()  # tasks with a record that fits without padding alone; with it alone
    with suppress(*PACKED_ERRORS), open_lines(file) as lines:  # the pass that follows reports it
        for line in lines:
            if '"SAME"' in line and "winograd" not in line:
                with suppress(BadLine, *MISSHAPEN):
                    record = decode(line, _Record)
                    template, args = record.input.template, record.input.args
                    padded = _fits(record, args)
                    if padded != _fits(record, _without_padding(args)):
                        only[padded].add(canonical([template, args]))
    return frozenset(only[False] - only[True])


def _fits(record: _Record, args: Sequence[Any]) -> bool:
    try:
        from_autotvm(record.input.template, args, record.config.entity)
    except TraceFormatError:
        return False
    return True


def _without_padding(args: Sequence[Any]) -> list[Any]:
    """Return a convolution's arguments with padding 0."""
    return [*args[:_PADDING], [0, 0, 0, 0], *args[_PADDING + 1 :]]
