"""Indices that stay inside of what they index, whatever an input holds.

PyTorch and ONNX Runtime refuse an index that is out of range: they look at every index in each call. What TVM compiles
reads, or writes, whatever lies there, so that a number beyond a vocabulary shows other memory or ends the process. Here
the nearest index in range stands for it, at the cost of two or three comparisons.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir.expr import GenericConst

from .simplify import call_pass, operator_name, static_shape

op: Any = relax.op


def bounded_indices() -> Any:
    """Return a Relax pass that bounds the indices of operators that read or write by them.

    Negative ones count from the end, as in ONNX. Constants stay as they are.
    """

    def rewrite(_builder: Any, call: Any) -> Any:
        rule = _RULES.get(operator_name(call))
        return call if rule is None or not static_shape(call.args[0]) else rule(call)

    return call_pass("TchubBoundedIndices", rewrite)


def _rows(call: Any) -> Any:
    """Bound the indices of whole rows, as of an embedding, for which TVM has a mode."""
    if call.attrs.mode != "fast" or isinstance(call.args[1], GenericConst):
        return call
    return op.take(*call.args, call.attrs.axis, mode="clip")


def _elements(call: Any) -> Any:
    """Bound indices of which each is one along an axis."""
    data, indices, *rest = call.args
    size = static_shape(data)[int(call.attrs.axis)]
    return relax.Call(call.op, [data, _inside(indices, [size]), *rest], call.attrs)


def _positions(call: Any) -> Any:
    """Bound indices whose last axis holds one for each of the first dimensions, after those of a batch."""
    data, indices, *rest = call.args
    batch = int(call.attrs.batch_dims) if operator_name(call) == "gather_nd" else 0
    shape = static_shape(indices)
    if not shape:
        return call
    sizes = static_shape(data)[batch : batch + shape[-1]]
    return relax.Call(call.op, [data, _inside(indices, sizes), *rest], call.attrs)


def _tensors(call: Any) -> Any:
    """Bound tensors of indices, one for each of the first dimensions."""
    data, indices, *rest = call.args
    if not isinstance(indices, relax.Tuple):
        return call
    pairs = zip(indices.fields, static_shape(data), strict=False)
    return relax.Call(call.op, [data, relax.Tuple([_inside(one, [size]) for one, size in pairs]), *rest], call.attrs)


def _inside(indices: Any, sizes: Sequence[int]) -> Any:
    """Return indices within sizes, of which there is one, or one for each index of the last axis."""
    dtype = str(indices.ty.dtype)
    if isinstance(indices, GenericConst) or "int" not in dtype:
        return indices
    if max(sizes) > np.iinfo(dtype).max:
        indices, dtype = op.astype(indices, "int64"), "int64"
    zero, ends = relax.const(0, dtype), np.array(sizes if len(sizes) > 1 else sizes[0])
    counted = op.where(op.less(indices, zero), op.add(indices, relax.const(ends, dtype)), indices)
    return op.minimum(op.maximum(counted, zero), relax.const(ends - 1, dtype))


_RULES = {
    "take": _rows,
    **dict.fromkeys(("gather_elements", "scatter_elements"), _elements),
    **dict.fromkeys(("gather_nd", "scatter_nd"), _positions),
    **dict.fromkeys(("index_tensor", "index_put"), _tensors),
}
