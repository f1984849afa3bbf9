"""The programs behind workload keys that name a function: `["conv2d_layer", 128, 64, 56, 56, 64, 3, 3, 1, "SAME"]`.

Ansor numbers the stages of a program (placeholders are stages too) by a depth-first walk from the output; a
record's steps name stages by that number. All tensors are float32, images NCHW, filters OIHW. Padding is
`"SAME"` (k - 1 in all, the larger half first, as TVM's topi has it), `"VALID"` (none), an int or a pair of ints.

Keys that name a graph by its hash tell nothing of what is computed and cannot be replayed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ...errors import TchubError


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


Padding = str | int | Sequence[int]


@dataclass(frozen=True, slots=True)
class StageInfo:
    """A stage before any schedule.

    Attributes:
        name: of its block, or of its buffer for a placeholder.
        shape: extents of the data-parallel axes.
        reduced: extents of the reduction axes.
        placeholder: whether it is an input.
    """

    name: str
    shape: tuple[int, ...]
    reduced: tuple[int, ...] = ()
    placeholder: bool = False


@dataclass(frozen=True, slots=True)
class Workload:
    """A task's program before any schedule.

    Attributes:
        mod: IRModule with one function, `main`.
        stages: what it computes, in Ansor's order.
    """

    mod: Any
    stages: tuple[StageInfo, ...]


@lru_cache(maxsize=512)
def workload(key: str) -> Workload:
    """The program of a workload key.

    Args:
        key: JSON `[function name, argument, ...]`, as Ansor writes it.

    Raises:
        ReplayError: no such function, or arguments that it does not take.
    """
    name, arguments = _parse(key)
    try:
        tensors = OPERATORS[name](*arguments)
    except (TypeError, ValueError, IndexError) as error:
        raise ReplayError("unknown-workload", f"{name} does not take {json.dumps(arguments)}: {error}") from error
    return make_workload(tensors)


def make_workload(tensors: Sequence[Any]) -> Workload:
    """A workload of tensor expressions: inputs first, the output last."""
    import tvm
    from tvm import s_tir, te

    mod = tvm.IRModule({"main": te.create_prim_func(list(tensors)).with_attr("global_symbol", "main")})
    schedule: Any = s_tir.Schedule(mod)
    blocks = iter([schedule.get(b).name_hint for b in schedule.get_child_blocks(schedule.get_sblock("root"))])
    return Workload(mod, tuple(_stage(op, blocks) for op in _walk(tensors[-1].op, [])))


def _parse(key: str) -> tuple[str, list[Any]]:
    try:
        name, *arguments = json.loads(key)
    except (ValueError, TypeError) as error:
        raise ReplayError("unknown-workload", f"not a workload key: {key[:80]!r}") from error
    if name not in OPERATORS:
        raise ReplayError(
            "unknown-workload",
            f"no operator is called {str(name)[:40]!r}",
            remedy=f"only tasks of plain operators can be replayed: {', '.join(OPERATORS)}",
        )
    return name, arguments


def _walk(op: Any, seen: list[Any]) -> list[Any]:
    """Operations in the order of Ansor's stages: inputs before what reads them."""
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


def paddings(padding: Padding, kernel: tuple[int, int]) -> tuple[int, int, int, int]:
    """Padding at the top, left, bottom and right."""
    if padding == "VALID":
        padding = 0
    if padding == "SAME":
        h, w = kernel
        return h // 2, w // 2, (h - 1) // 2, (w - 1) // 2
    if isinstance(padding, str):
        raise ValueError(f"no padding is called {padding!r}")
    h, w = (padding, padding) if isinstance(padding, int) else padding
    return h, w, h, w


def _inputs(*shapes: Sequence[int]) -> list[Any]:
    from tvm import te

    return [te.placeholder(tuple(shape), "float32", f"input{i}") for i, shape in enumerate(shapes)]


def _conv2d_layer(n, ci, h, w, co, kh, kw, stride, padding) -> list[Any]:
    from tvm import topi

    data, kernel = _inputs((n, ci, h, w), (co, ci, kh, kw))
    return [data, kernel, topi.nn.conv2d_nchw(data, kernel, stride, paddings(padding, (kh, kw)), 1)]


def _conv2d(n, h, w, co, ci, kh, kw, stride, padding) -> list[Any]:
    return _conv2d_layer(n, ci, h, w, co, kh, kw, stride, padding)


def _depthwise_conv2d_layer(n, c, h, w, kh, kw, stride, padding) -> list[Any]:
    from tvm import topi

    data, kernel = _inputs((n, c, h, w), (c, 1, kh, kw))
    return [data, kernel, topi.nn.depthwise_conv2d_nchw(data, kernel, stride, paddings(padding, (kh, kw)), 1)]


def _matmul_layer(m, k, n) -> list[Any]:
    from tvm import te

    a, b = _inputs((m, k), (k, n))
    axis = te.reduce_axis((0, k), "k")
    return [a, b, te.compute((m, n), lambda i, j: te.sum(a[i, axis] * b[axis, j], axis=axis), "matmul")]


def _batch_matmul_layer(batch, m, k, n) -> list[Any]:
    from tvm import te

    a, b = _inputs((batch, m, k), (batch, k, n))
    axis = te.reduce_axis((0, k), "k")
    out = te.compute((batch, m, n), lambda z, i, j: te.sum(a[z, i, axis] * b[z, axis, j], axis=axis), "matmul")
    return [a, b, out]


def _pool_layer(kind, n, c, h, w, kh, kw, stride, padding) -> list[Any]:
    from tvm import topi

    (data,) = _inputs((n, c, h, w))
    pads = paddings(padding, (kh, kw))
    return [data, topi.nn.pool2d(data, (kh, kw), (stride, stride), (1, 1), pads, kind)]


def _reduction_layer(shape, axis, keep_dims) -> list[Any]:
    from tvm import topi

    (data,) = _inputs(shape)
    return [data, topi.sum(data, axis, keep_dims)]


def _relu_layer(*shape: int) -> list[Any]:
    from tvm import topi

    (data,) = _inputs(shape)
    return [data, topi.nn.relu(data)]


OPERATORS: dict[str, Callable[..., list[Any]]] = {
    "conv2d_layer": _conv2d_layer,
    "conv2d": _conv2d,
    "depthwise_conv2d_layer": _depthwise_conv2d_layer,
    "matmul_layer": _matmul_layer,
    "batch_matmul_layer": _batch_matmul_layer,
    "pool_layer": _pool_layer,
    "reduction_layer": _reduction_layer,
    "relu_layer": _relu_layer,
}
"""Functions of the workload keys that are known; each gives its tensors, the output last."""
