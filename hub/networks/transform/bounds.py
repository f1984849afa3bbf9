"""Indices that stay inside of what they index, whatever an input holds.

PyTorch and ONNX Runtime refuse an index that is out of range: they look at every index in each call. What TVM compiles
reads, or writes, whatever lies there, so that a number beyond a vocabulary shows other memory or ends the process. Here
the nearest index in range stands for it, at the cost of two or three comparisons. The places that a sort or the
search of a maximum gives need none.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir.expr import GenericConst

from .relax_graph import bound_value, call_pass, constant_values, operator_name, static_shape

op: Any = relax.op


def bounded_indices() -> Any:
    """Return a Relax pass that bounds the indices of operators that read or write by them.

    Negative ones count from the end, as in ONNX. Constants stay as they are.
    """

    def rewrite(builder: Any, call: Any) -> Any:
        rule = _RULES.get(operator_name(call))
        return call if rule is None or not static_shape(call.args[0]) else rule(builder, call)

    return call_pass("TchubBoundedIndices", rewrite)


def _rows(builder: Any, call: Any) -> Any:
    """Bound the indices of whole rows, as of an embedding, for which TVM has a mode."""
    data, indices = call.args
    axis = call.attrs.axis
    size = prod(static_shape(data)) if axis is None else static_shape(data)[int(axis)]
    if call.attrs.mode != "fast" or _is_known(builder, indices, [size]):
        return call
    return op.take(data, indices, axis, mode="clip")


def _elements(builder: Any, call: Any) -> Any:
    """Bound indices of which each is one along an axis."""
    data, indices, *rest = call.args
    size = static_shape(data)[int(call.attrs.axis)]
    return relax.Call(call.op, [data, _inside(builder, indices, [size]), *rest], call.attrs)


def _positions(builder: Any, call: Any) -> Any:
    """Bound indices whose last axis holds one for each of the first dimensions, after those of a batch."""
    data, indices, *rest = call.args
    batch = int(call.attrs.batch_dims) if operator_name(call) == "gather_nd" else 0
    shape = static_shape(indices)
    if not shape:
        return call
    sizes = static_shape(data)[batch : batch + shape[-1]]
    return relax.Call(call.op, [data, _inside(builder, indices, sizes), *rest], call.attrs)


def _tensors(builder: Any, call: Any) -> Any:
    """Bound tensors of indices, one for each of the first dimensions."""
    data, indices, *rest = call.args
    if not isinstance(indices, relax.Tuple):
        return call
    pairs = zip(indices.fields, static_shape(data), strict=False)
    bounded = [_inside(builder, one, [size]) for one, size in pairs]
    return relax.Call(call.op, [data, relax.Tuple(bounded), *rest], call.attrs)


def _inside(builder: Any, indices: Any, sizes: Sequence[int]) -> Any:
    """Return indices within sizes, of which there is one, or one for each index of the last axis."""
    dtype = str(indices.ty.dtype)
    if "int" not in dtype or _is_known(builder, indices, sizes):
        return indices
    if max(sizes) > np.iinfo(dtype).max:
        indices, dtype = op.astype(indices, "int64"), "int64"
    zero, ends = relax.const(0, dtype), np.array(sizes if len(sizes) > 1 else sizes[0])
    counted = op.where(op.less(indices, zero), op.add(indices, relax.const(ends, dtype)), indices)
    return op.minimum(op.maximum(counted, zero), relax.const(ends - 1, dtype))


def _is_known(builder: Any, indices: Any, sizes: Sequence[int]) -> bool:
    """Return whether indices are constants, or places along an axis that is no longer than any of the sizes."""
    if isinstance(indices, GenericConst):
        return True
    value, number = bound_value(builder, indices), 0
    attrs: Any
    while isinstance(value, relax.TupleGetItem) or (isinstance(value, relax.Call) and _keeps_numbers(value)):
        if isinstance(value, relax.Call):
            value = bound_value(builder, value.args[0])
            continue
        number, value = value.index, bound_value(builder, value.tuple_value)
        if isinstance(value, relax.Tuple):
            value = bound_value(builder, value.fields[number])
    name = operator_name(value) if isinstance(value, relax.Call) else ""
    if name not in _PLACES or (name == "topk" and number == 0):
        return False
    shape, attrs = static_shape(value.args[0]), value.attrs
    return bool(shape) and (prod(shape) if attrs.axis is None else shape[int(attrs.axis)]) <= min(sizes)


def _keeps_numbers(call: Any) -> bool:
    """Return whether a call moves numbers, widens their type, or is the bound that the place of a maximum has."""
    if operator_name(call) == "maximum":
        bound = constant_values(call.args[1])
        return bound is not None and not bound.any()
    return operator_name(call) in _MOVES and str(call.ty.dtype) in ("int32", "int64")


_PLACES = ("argmax", "argmin", "argsort", "topk")
_MOVES = (
    *("astype", "broadcast_to", "expand_dims", "flip", "gather_elements", "permute_dims", "reshape", "squeeze"),
    *("strided_slice", "take"),
)
_RULES = {
    "take": _rows,
    **dict.fromkeys(("gather_elements", "scatter_elements"), _elements),
    **dict.fromkeys(("gather_nd", "scatter_nd"), _positions),
    **dict.fromkeys(("index_tensor", "index_put"), _tensors),
}
