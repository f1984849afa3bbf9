"""Products over a number of columns that no vector register divides are computed for a few more.

The columns of a product are its vocabulary, classes or channels: GPT-2 has 50,257, BERT 30,522, ADE20K 150. A tile
holds a divisor of them, and where that is no multiple of a register's numbers a schedule reaches a third to two thirds
of what it reaches otherwise. So columns of zeros are added to the weights when the network is compiled. What is
elementwise goes on with the longer rows, a softmax gives the added columns nothing, and they are left out behind.
"""

from math import prod
from typing import Any

import numpy as np
from tvm import relax

from .relax_graph import bound_to, call_pass, constant_address, constant_values, operator_name, static_shape
from .reshapes import BINARY, UNARY

op: Any = relax.op

# Share of the columns that may be added.
_MOST_ADDED = 1 / 6
# Below these, what is left out behind costs as much to copy as the longer columns save.
_LEAST_ROWS, _LEAST_DEPTH = 16, 48
# Of zero these may be infinite or no number.
_FINITE = {*UNARY} - {"log", "rsqrt", "sqrt"}


def whole_columns(columns: int, lanes: int) -> int:
    """Return the columns that a product is computed for, as many as it has where more do not pay."""
    more = -(-columns // lanes) * lanes
    return more if more <= columns * (1 + _MOST_ADDED) else columns


def pad_columns(lanes: int) -> Any:
    """Return a pass that computes products with weights over more columns where that pays; float32 alone.

    Args:
        lanes: numbers of a vector register.
    """
    # What the added columns hold is known of these tensors alone: a network may cut others itself.
    longer, weights = dict[Any, int](), dict[Any, Any]()

    def rewrite(builder: Any, call: Any) -> Any:
        name, shape = operator_name(call), static_shape(call)
        whole = None
        if name in ("matmul", "nn.conv2d"):
            whole = _product(call, lanes, weights)
        elif name in _FINITE or name in BINARY:
            whole = _elementwise(call, [_source(builder, arg, longer) for arg in call.args])
        elif name == "reshape" and (source := _source(builder, call.args[0], longer)) is not None:
            if static_shape(call.args[0])[-1:] == shape[-1:]:
                whole = op.reshape(source, (*shape[:-1], static_shape(source)[-1]))
        elif name == "nn.softmax" and int(call.attrs.axis) in (-1, len(shape) - 1):
            whole = _softmax(builder, call, _source(builder, call.args[0], longer))
        elif name == "strided_slice" and (source := _source(builder, call.args[0], longer)) is not None:
            return relax.Call(call.op, [source, *call.args[1:]], call.attrs) if _takes_columns(call) else call
        if whole is None:
            return call
        whole = builder.emit(whole)
        longer[whole] = shape[-1]
        return op.strided_slice(whole, [len(shape) - 1], [0], [shape[-1]])

    return call_pass("TchubPadColumns", rewrite)


def _product(call: Any, lanes: int, weights: dict[Any, Any]) -> Any:
    """Return a product, or a convolution, with weights over more columns; None where it has none or would not pay."""
    shape, values = static_shape(call), constant_values(call.args[1])
    if values is None or len(shape) < 2 or str(call.ty.dtype) != "float32" or not _is_of_columns(call, values):
        return None
    more = whole_columns(shape[-1], lanes)
    if more == shape[-1] or prod(shape[:-1]) < _LEAST_ROWS or prod(values.shape[:-1]) < _LEAST_DEPTH:
        return None
    key = constant_address(call.args[1]), values.shape
    if key not in weights:  # which several products may share
        width = [(0, 0)] * (values.ndim - 1) + [(0, more - shape[-1])]
        weights[key] = relax.const(np.pad(values, width))
    return relax.Call(call.op, [call.args[0], weights[key]], call.attrs)


def _is_of_columns(call: Any, weights: np.ndarray) -> bool:
    """Return whether the last axis of some weights is the last axis of the result."""
    if operator_name(call) == "matmul":
        return weights.ndim == 2
    layouts = (call.attrs.data_layout, call.attrs.kernel_layout, call.attrs.out_layout)
    return layouts == ("NHWC", "HWIO", "NHWC") and int(call.attrs.groups) == 1


def _elementwise(call: Any, sources: list[Any]) -> Any:
    """Return an elementwise operator on longer rows; None where an operand cannot be made so."""
    columns, longer = static_shape(call)[-1:], {static_shape(source)[-1] for source in sources if source is not None}
    if len(longer) != 1:
        return None
    args = list[Any]()
    for number, (arg, source) in enumerate(zip(call.args, sources, strict=True)):
        values, divides = constant_values(arg), operator_name(call) == "divide" and number == 1
        if source is not None and not divides:
            args.append(source)
        elif values is None or source is not None:
            return None
        elif static_shape(arg)[-1:] == columns:
            width = [(0, 0)] * (values.ndim - 1) + [(0, max(longer) - columns[0])]
            args.append(relax.const(np.pad(values, width, constant_values=int(divides))))
        elif values.size == 1:
            args.append(arg)
        else:
            return None
    return relax.Call(call.op, args, call.attrs)


def _softmax(builder: Any, call: Any, source: Any) -> Any:
    """Return a softmax over longer rows, to which the added columns add nothing; None without them."""
    if source is None:
        return None
    before, after = static_shape(call)[-1], static_shape(source)[-1]
    uncounted = np.where(np.arange(after) < before, 0.0, -np.inf).astype("float32")
    return op.nn.softmax(builder.emit(op.add(source, relax.const(uncounted))), axis=-1)


def _source(builder: Any, value: Any, longer: dict[Any, int]) -> Any:
    """Return the tensor of more columns that a value was cut from; None for another value."""
    call = bound_to(builder, value, "strided_slice")
    return call.args[0] if call is not None and longer.get(call.args[0]) == static_shape(value)[-1] else None


def _takes_columns(call: Any) -> bool:
    """Return whether a slice takes some of the columns alone, and counts them from the first."""
    shape, ranges = static_shape(call.args[0]), call.args[1:4]
    axes, begin, end = ([int(n) for n in part] for part in ranges)
    return [axis % len(shape) for axis in axes] == [len(shape) - 1] and 0 <= begin[0] <= end[0] <= shape[-1]
