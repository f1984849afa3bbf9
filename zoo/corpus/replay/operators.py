"""The programs behind workload keys that name a function: `["conv2d_layer", 128, 64, 56, 56, 64, 3, 3, 1, "SAME"]`.

Ansor numbers the stages of a program (placeholders are stages too) by a depth-first walk from the output; a
record's steps name stages by that number. All tensors are float32, images NCHW, filters OIHW.

Keys that name a graph by its hash tell nothing of what is computed and cannot be replayed.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from ...errors import TchubError
from ...primitives.problem import Conv, Matmul, Problem, paddings, pair
from ..importers.ansor import PROBLEMS


class ReplayError(TchubError):
    """A record that cannot be replayed.

    Fields: `reason`, a word of a small fixed set by which failures are counted (`unknown-framework`,
    `unknown-workload`, `unknown-step`, `wrong-shape`, `refused` where TVM does not allow a step, `different` where
    the replayed loops are not the record's), and `step`, the position of the offending step or None.
    """

    exit_code = 2

    def __init__(self, reason: str, message: str, *, step: int | None = None, remedy: str | None = None) -> None:
        super().__init__(
            message if step is None else f"{message} (step {step})",
            remedy=remedy or "leave the record out: its features cannot be made, its primitives can still be read",
            reason=reason,
            step=step,
        )
        self.reason = reason


class StageInfo(NamedTuple):
    """A stage before any schedule."""

    name: str  # of its block, or of its buffer for a placeholder
    shape: tuple[int, ...]  # extents of the data-parallel axes
    reduced: tuple[int, ...] = ()  # extents of the reduction axes
    placeholder: bool = False


class UnscheduledTask(NamedTuple):
    """A task's program before any schedule: an IRModule with one function, `main`, and its stages in Ansor's order."""

    mod: Any
    stages: tuple[StageInfo, ...]


@lru_cache(maxsize=512)
def workload(key: str) -> UnscheduledTask:
    """Return the program of a workload key.

    Args:
        key: JSON `[function name, argument, ...]`, as Ansor writes it.

    Raises:
        ReplayError: no such function, or arguments that it does not take.
    """
    try:
        name, *arguments = json.loads(key)
        if name not in OPERATORS:
            remedy = f"only tasks of plain operators can be replayed: {', '.join(OPERATORS)}"
            raise ReplayError("unknown-workload", f"no operator is called {str(name)[:40]!r}", remedy=remedy)
        return make_workload(OPERATORS[name](*arguments))
    except (TypeError, ValueError, IndexError) as error:
        raise ReplayError("unknown-workload", f"{key[:120]} cannot be made: {error}") from error


def make_workload(tensors: Sequence[Any]) -> UnscheduledTask:
    """Return a task of tensor expressions: inputs first, the output last."""
    import tvm
    from tvm import s_tir, te

    mod = tvm.IRModule({"main": te.create_prim_func(list(tensors)).with_attr("global_symbol", "main")})
    schedule: Any = s_tir.Schedule(mod)
    blocks = iter([schedule.get(b).name_hint for b in schedule.get_child_blocks(schedule.get_sblock("root"))])
    return UnscheduledTask(mod, tuple(_stage(op, blocks) for op in _walk(tensors[-1].op, [])))


def _walk(op: Any, seen: list[Any]) -> list[Any]:
    """Return operations in the order of Ansor's stages: inputs before what reads them."""
    if not any(op.same_as(other) for other in seen):
        for tensor in op.input_tensors:
            _walk(tensor.op, seen)
        seen.append(op)
    return seen


def _stage(op: Any, blocks: Iterator[str]) -> StageInfo:
    from tvm import te

    name, shape = str(op.name), tuple(map(int, op.output(0).shape))
    if isinstance(op, te.PlaceholderOp):
        return StageInfo(name, shape, placeholder=True)
    return StageInfo(next(blocks), shape, tuple(int(axis.dom.extent) for axis in op.reduce_axis))


def problem_tensors(problem: Problem) -> list[Any]:
    """Return the tensors of a convolution or a matrix product: inputs first, the output last."""
    return _conv(problem) if isinstance(problem, Conv) else _matmul(problem)


def _conv(conv: Conv) -> list[Any]:
    from tvm import topi

    filters = (conv.c, conv.k // conv.c) if conv.depthwise else (conv.k, conv.c)
    data, weights = _inputs((conv.n, conv.c, conv.h, conv.w), (*filters, *conv.kernel))
    compute = topi.nn.depthwise_conv2d_nchw if conv.depthwise else topi.nn.conv2d_nchw
    return [data, weights, compute(data, weights, conv.stride, conv.padding, conv.dilation)]


def _matmul(task: Matmul) -> list[Any]:
    from tvm import te

    batch = () if task.dense else (task.batch,)
    turned = [letter == "T" for letter in task.weights]

    def stored(number: int, row: Any, column: Any) -> tuple[Any, Any]:
        return (column, row) if turned[number] else (row, column)

    a, b = _inputs((*batch, *stored(0, task.m, task.k)), (*batch, *stored(1, task.k, task.n)))
    k = te.reduce_axis((0, task.k), "k")

    def product(*axes: Any) -> Any:
        *z, i, j = axes
        return te.sum(a[(*z, *stored(0, i, k))] * b[(*z, *stored(1, k, j))], axis=k)

    return [a, b, te.compute((*batch, task.m, task.n), product, "matmul")]


def _inputs(*shapes: Sequence[int]) -> list[Any]:
    from tvm import te

    return [te.placeholder(tuple(shape), "float32", f"input{i}") for i, shape in enumerate(shapes)]


def _pool_layer(kind: str, n: int, c: int, h: int, w: int, kh: int, kw: int, stride: Any, padding: Any) -> list[Any]:
    from tvm import topi

    (data,) = _inputs((n, c, h, w))
    return [data, topi.nn.pool2d(data, (kh, kw), pair(stride), (1, 1), paddings(padding, (kh, kw)), kind)]


def _reduction_layer(shape: Sequence[int], axis: Any, keep_dims: bool) -> list[Any]:
    from tvm import topi

    (data,) = _inputs(shape)
    return [data, topi.sum(data, axis, keep_dims)]


def _relu_layer(*shape: int) -> list[Any]:
    from tvm import topi

    (data,) = _inputs(shape)
    return [data, topi.nn.relu(data)]


OPERATORS: dict[str, Callable[..., list[Any]]] = {
    **{
        name: lambda *arguments, function=PROBLEMS[name]: problem_tensors(function(*arguments))
        for name in ("conv2d_layer", "conv2d", "depthwise_conv2d_layer", "matmul_layer")
    },
    "batch_matmul_layer": lambda batch, m, k, n: problem_tensors(Matmul(batch, m, n, k, "NN", "float32")),
    "pool_layer": _pool_layer,
    "reduction_layer": _reduction_layer,
    "relu_layer": _relu_layer,
}
"""Functions of the workload keys that are known; each gives its tensors, the output last."""
