"""AutoTVM tasks: their names, what tells them apart, and the padding that was truly measured."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...primitives import AUTOTVM_TEMPLATES, TraceFormatError
from ...primitives.autotvm_problem import Conv, Matmul, Problem, problem
from .. import computation
from ..schema import OPS, Task
from .base import MISSHAPEN
from .files import PACKED_ERRORS, open_lines

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
