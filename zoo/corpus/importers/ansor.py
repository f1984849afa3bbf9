"""Ansor (TVM auto_scheduler) and TenSet measurement records -> entries.

One record a line, `{"i": [task, state], "r": result, "v": version}`. The versions that were ever in use (v0.2 to
v0.6) differ in how much of the task they hold; key and target are what is needed here.

A workload key is a JSON list: a function's name, or the hash of a computation graph, then arguments. A function that
is known here gives its operator exactly. Behind a hash stand the shapes of the graph's tensors (nested lists, or
TenSet's flat integers, where borders between shapes are lost): its heaviest operator, the *anchor*, is guessed
from shapes that fit together, an operand, a weight after it, and the result at the end. A hash alone says nothing.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import nan, prod
from pathlib import Path
from typing import Any

import msgspec

from ...primitives import TraceFormatError, from_ansor_steps
from ...primitives.problem import Conv, Matmul, Problem, paddings, pair
from .. import computation
from ..schema import Task
from .records import BadLine, ImportContext, LineReader, MeasureResult, TaskFacts, canonical, compact, decode, digest

_SENTINEL = 1e10
"""The cost in seconds that Ansor writes for a program without one."""


class _TaskInput(msgspec.Struct, array_like=True):
    key: str
    target: str


class _State(msgspec.Struct, array_like=True):
    stages: Any
    steps: list[Any]


class _Record(msgspec.Struct):
    i: tuple[_TaskInput, _State]
    r: MeasureResult


def ansor_reader(_file: Path, _name: str, context: ImportContext) -> LineReader:
    """Return the reader of a log; broken lines are also `unknown-step` and `bad-steps`."""

    @cache
    def task_of(key: str) -> Task:
        facts, parsed = context.facts.get(canonical(key), TaskFacts()), decode(key, list[Any])
        if not parsed or not isinstance(parsed[0], str):
            raise BadLine("wrong-shape", f"a workload key is a JSON list led by a name: {key!r:.80}")
        work = read_workload(parsed)
        return facts.task(f"{work.text}|{work.detail}", key, work.text, work.name, work.op, work.flops)

    def read(line: str) -> tuple[Task, dict[str, Any]]:
        record = decode(line, _Record)
        recorded, state = record.i
        task, columns = task_of(recorded.key), record.r.columns(_SENTINEL)
        try:
            primitives = from_ansor_steps(state.steps).to_json()
        except TraceFormatError as error:
            raise BadLine("unknown-step" if error.unknown else "bad-steps", error.message) from None
        trace = compact(state.steps)
        columns |= {"key": digest(trace), "trace": trace, "primitives": primitives}
        return task, columns | {"target": compact(recorded.target)}

    return read


# Workload keys -------------------------------------------------------------------------------------------

Shape = list[int]
_WINOGRAD = (4, 6)
"""Sides of a 3x3 kernel transformed for output tiles of 2x2 and 4x4."""
_LARGEST = 16
"""Side of the largest kernel believed: a residual input of c channels otherwise looks like a 1 x c kernel."""


@dataclass(frozen=True, slots=True)
class KeyedComputation:
    """The computation of a workload key: operator class, operations of a call (of the anchor alone, for a graph; NaN
    when unknown), the text of `computation`, and what that leaves out and tells tasks apart: padding, or the graph.
    """

    op: str
    flops: float
    text: str
    detail: str = ""

    @property
    def name(self) -> str:
        """Return a name for people: the computation, then padding or the first digits of the graph's hash."""
        return f"{self.text}-{self.detail[:8]}" if self.detail else self.text


def read_workload(key: list[Any]) -> KeyedComputation:
    """Read a workload key, already parsed: a name, then arguments; an unknown one is of operator `other`."""
    name, arguments = str(key[0]), key[1:]
    whole = " ".join(map(str, key)).replace(" ", "")
    unknown = KeyedComputation("other", nan, computation.unknown(whole))
    try:
        if name in PROBLEMS:
            return _of_problem(PROBLEMS[name](*arguments))
        if not re.fullmatch("[0-9a-f]{32}", name):  # the hash of a graph
            return _FUNCTIONS[name](*arguments)
        guesses = (_GUESSES[len(shapes[0])](*shapes) for shapes in _triples(arguments) if len(shapes[0]) in _GUESSES)
        anchor = next(filter(None, guesses), unknown)  # the first operator whose three shapes fit
        return KeyedComputation(anchor.op, anchor.flops, anchor.text, whole)
    except (KeyError, TypeError, ValueError, IndexError, ArithmeticError):
        return unknown


def _of_problem(problem: Problem) -> KeyedComputation:
    op, text = computation.of_problem(problem)
    detail = problem.dtype if isinstance(problem, Matmul) else _pads(problem.padding)
    return KeyedComputation(op, problem.flops, text, detail)


def _pads(padding: Sequence[int]) -> str:
    return "p" + ".".join(map(str, padding))


def _product(shape: Sequence[int]) -> int:
    """Return a product; Python would multiply a text or a list by a length too, and take as much memory."""
    if not all(type(extent) is int for extent in shape):
        raise TypeError(f"a shape holds something else than whole numbers: {shape!r:.80}")
    return prod(shape)


# Functions by name


def _conv2d_layer(n: int, *arguments: Any) -> Conv:
    """Stride as a number: (n, c, h, w, k, ...); as a list: TVM's tutorial, (n, h, w, k, c, ...)."""
    *sizes, kh, kw, stride, padding = arguments
    c, h, w, k = sizes if isinstance(stride, int) else (sizes[3], *sizes[:3])
    return Conv(n, c, h, w, k, (kh, kw), pair(stride), paddings(padding, (kh, kw)))


def _depthwise_layer(n: int, c: int, h: int, w: int, kh: int, kw: int, stride: Any, padding: Any) -> Conv:
    return Conv(n, c, h, w, c, (kh, kw), pair(stride), paddings(padding, (kh, kw)), depthwise=True)


def _matmul(m: int, n: int, k: int, batch: int = 1, dtype: str = "") -> Matmul:
    return Matmul(batch, m, n, k, "NN", dtype, dense=batch == 1)


PROBLEMS: dict[str, Callable[..., Problem]] = {
    "conv2d_layer": _conv2d_layer,
    "conv2d": _conv2d_layer,
    "depthwise_conv2d_layer": _depthwise_layer,
    "matmul_layer": lambda m, k, n: _matmul(m, n, k),
    "matmul_add": lambda m, k, n, dtype: _matmul(m, n, k, dtype=dtype),
}
"""Functions of workload keys that are convolutions and matrix products, by name."""


def _pool_layer(
    kind: str, n: int, c: int, h: int, w: int, kh: int, kw: int, stride: Any, padding: Any
) -> KeyedComputation:
    window = _depthwise_layer(n, c, h, w, kh, kw, stride, padding)
    text = computation.windowed(f"{kind}pool", n, c, h, w, window.kernel, window.stride)
    return KeyedComputation("pool", window.flops / 2, text, _pads(window.padding))


def _reduction_layer(shape: Shape, axes: Any, *_: Any) -> KeyedComputation:
    axes = [axes] if isinstance(axes, int) else axes
    return KeyedComputation("reduce", float(_product(shape)), computation.reduction(shape, axes))


def _relu_layer(*shape: int) -> KeyedComputation:
    return KeyedComputation("elementwise", float(_product(shape)), computation.elementwise(shape))


_FUNCTIONS: dict[str, Callable[..., KeyedComputation]] = {
    "pool_layer": _pool_layer,
    "reduction_layer": _reduction_layer,
    "relu_layer": _relu_layer,
}


# Graphs by the shapes of their tensors


def _triples(arguments: list[Any]) -> Iterator[tuple[Shape, Shape, Shape]]:
    """Yield (operand, weight, result): neighbours among nested shapes, first and last of each rank in a flat key."""
    if arguments and all(type(size) is int for size in arguments):
        for rank in (4, 3, 2):
            if len(arguments) >= 3 * rank:
                yield arguments[:rank], arguments[rank : 2 * rank], arguments[-rank:]
    elif all(isinstance(shape, list) and all(type(size) is int and size > 0 for size in shape) for shape in arguments):
        for data, weight in pairwise(arguments[:-1]):
            yield data, weight, arguments[-1]


def _guess_convolution(data: Shape, weight: Shape, out: Shape) -> KeyedComputation | None:
    """Try NHWC with kernels (r, s, c, k), NCHW with (k, c, r, s), also blocked (k/b, c, r, s, b) or Winograd's."""
    if len(out) != 4 or data[0] != out[0] or min(*data, *weight, *out) < 1:
        return None
    for channel, (rows, columns) in ((3, (1, 2)), (1, (2, 3))):
        c, k = data[channel], out[channel]
        size, result = (data[rows], data[columns]), (out[rows], out[columns])
        for kernel, depthwise in _kernels(weight, c, k, blocked=channel == 1, same=size == result):
            if all(o <= i and 1 <= r <= min(max(i, 3), _LARGEST) for i, o, r in zip(size, result, kernel, strict=True)):
                stride = _stride(size[0], result[0], kernel[0]), _stride(size[1], result[1], kernel[1])
                flops, shape = 2.0 * data[0] * k * prod(result) * prod(kernel), (data[0], c, *size)
                if depthwise:
                    text = computation.windowed("depthwise", *shape, kernel, stride)
                    return KeyedComputation("depthwise", flops, text)
                return KeyedComputation("conv2d", flops * c, computation.conv2d(*shape, k, kernel, stride))
    return None


def _kernels(weight: Shape, c: int, k: int, *, blocked: bool, same: bool) -> Iterator[tuple[tuple[int, int], bool]]:
    """Yield (kernel, whether depthwise) for every way in which a weight fits c input and k output channels."""
    first, second, third, fourth, *block = weight if len(weight) >= 4 else [0] * 4
    if not block and (third, fourth) == (c, 1) and c == k > 1:
        yield (first, second), True
    if not block and (third, fourth) == (c, k):
        yield ((3, 3) if same and first == second and first in _WINOGRAD else (first, second)), False
    if blocked and len(block) < 2 and first * prod(block) == k:
        if second == c:
            yield (third, fourth), False
        elif second == 1 and c == k:
            yield (third, fourth), True


def _stride(size: int, out: int, kernel: int) -> int:
    """Return the stride that the sizes suggest; the unknown padding nearly always keeps size / stride pixels."""
    return 1 if size - kernel + 1 == out else max(1, round(size / out))


def _guess_matmul(data: Shape, weight: Shape, out: Shape) -> KeyedComputation | None:
    """Try a matrix product, or a batch of them."""
    *batch, m, k = data
    if out[:-1] == [*batch, m] and weight in ([*batch, out[-1], k], [*batch, k, out[-1]]):
        return _of_problem(_matmul(m, out[-1], k, batch=prod(batch)))
    return None


_GUESSES = {4: _guess_convolution, 3: _guess_matmul, 2: _guess_matmul}
