"""Single operators in TVM's tensor-expression language: the tasks that no network is needed for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...zoo.corpus.workloads import OperatorSpec
from .errors import NetworkLoadError

if TYPE_CHECKING:
    from tvm import IRModule


def _conv2d(s: Mapping[str, int]) -> list[Any]:
    from tvm import te, topi

    data = te.placeholder((1, s["channels"], s["size"], s["size"]), name="data")
    kernel = te.placeholder((s["filters"], s["channels"], s["kernel"], s["kernel"]), name="kernel")
    return [data, kernel, topi.nn.conv2d_nchw(data, kernel, s["stride"], s["kernel"] // 2, 1)]


def _depthwise(s: Mapping[str, int]) -> list[Any]:
    from tvm import te, topi

    data = te.placeholder((1, s["channels"], s["size"], s["size"]), name="data")
    kernel = te.placeholder((s["channels"], 1, s["kernel"], s["kernel"]), name="kernel")
    out = topi.nn.depthwise_conv2d_nchw(data, kernel, s["stride"], s["kernel"] // 2, 1)
    return [data, kernel, out]


def _dense(s: Mapping[str, int]) -> list[Any]:
    from tvm import te, topi

    a = te.placeholder((s["m"], s["k"]), name="a")
    b = te.placeholder((s["k"], s["n"]), name="b")
    return [a, b, topi.matmul(a, b)]


def _batch_matmul(s: Mapping[str, int]) -> list[Any]:
    from tvm import te, topi

    a = te.placeholder((s["batch"], s["m"], s["k"]), name="a")
    b = te.placeholder((s["batch"], s["k"], s["n"]), name="b")
    return [a, b, topi.nn.batch_matmul(a, b, transpose_a=False, transpose_b=False)]


def _softmax(s: Mapping[str, int]) -> list[Any]:
    from tvm import te, topi

    x = te.placeholder((s["rows"], s["columns"]), name="x")
    return [x, topi.nn.softmax(x, axis=-1)]


def _pool(s: Mapping[str, int]) -> list[Any]:
    from tvm import te, topi

    x = te.placeholder((1, s["channels"], s["size"], s["size"]), name="x")
    pad = 0 if s["stride"] == s["kernel"] else s["kernel"] // 2
    kind = "avg" if s["stride"] == s["kernel"] else "max"
    k, st = [s["kernel"]] * 2, [s["stride"]] * 2
    return [x, topi.nn.pool2d(x, k, st, [1, 1], [pad] * 4, kind, layout="NCHW")]


_BUILDERS = {
    "conv2d": _conv2d,
    "depthwise": _depthwise,
    "dense": _dense,
    "batch_matmul": _batch_matmul,
    "softmax": _softmax,
    "pool": _pool,
}


def operator_module(spec: OperatorSpec) -> IRModule:
    """The operator as an `IRModule` with one TIR function `main`, unscheduled, float32."""
    import tvm
    from tvm import te

    if spec.op not in _BUILDERS:
        raise NetworkLoadError(f"no operator {spec.op!r}", remedy=f"known: {', '.join(_BUILDERS)}", op=spec.op)
    func = te.create_prim_func(_BUILDERS[spec.op](spec.shape))
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
