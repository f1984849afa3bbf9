"""Matrix products: what 1x1 convolutions become, and over a number of rows that no register tile divides, a few more.

ViT has 197 tokens, CLIP's and DINO's larger images 257 and 577: a prime number of rows has tiles of one row or of all,
and a tile of one row loads a vector of weights for each multiplication. Rows are independent of each other in a
product with weights, in what is elementwise, and in a norm over the last axis. So zeros are added once, the network
goes on with the longer tensors, and what was computed for the padding rows is left out where rows meet, as in
attention, and at the end.
"""

from math import prod
from typing import Any

from tvm import relax

from .attention import padded, padded_rows
from .relax_graph import bound_to, call_pass, constant_values, is_channels_last, operator_name, static_shape
from .reshapes import BINARY, UNARY

op: Any = relax.op

# Rows below which a tile may hold all of them. From here on at most a tenth is added.
_LEAST = 16
# Operators that compute each row of their first argument by itself, where they work along its last axis.
_NORMS, _REDUCTIONS = ("nn.layer_norm", "nn.rms_norm"), ("max", "mean", "min", "sum", "variance")
_ALONG_ROWS = (*_NORMS, *_REDUCTIONS, "nn.softmax", "strided_slice", "reshape")


def pointwise_products() -> Any:
    """Return a pass that computes a 1x1 convolution of channels-last images as a product of two matrices.

    A row is a pixel. Tiles are then of all pixels, not of rows and of columns, which are often 7 or 14, and a schedule
    has half the decisions to search.
    """

    def rewrite(builder: Any, call: Any) -> Any:
        if operator_name(call) != "nn.conv2d":
            return call
        attrs: Any = call.attrs
        image, weight = map(static_shape, call.args)
        every_pixel = {*map(int, attrs.strides)} == {1} and not any(map(int, attrs.padding)) and attrs.groups == 1
        plain = is_channels_last(call) and str(call.ty.dtype) == "float32"
        if not (image and plain and every_pixel and weight[:2] == (1, 1)):
            return call
        rows = builder.emit(op.reshape(call.args[0], [prod(image[:-1]), image[-1]]))
        product = builder.emit(op.matmul(rows, builder.emit(op.reshape(call.args[1], list(weight[2:])))))
        return op.reshape(product, call.ty.shape)

    return call_pass("TchubPointwiseProducts", rewrite)


def pad_rows() -> Any:
    """Return a pass that computes products with weights over more rows where that makes them faster; float32 alone."""
    return call_pass("TchubPadRows", _longer)


def _longer(builder: Any, call: Any) -> Any:
    """Compute a call over more rows and cut the result, or return the call as it is."""
    name = operator_name(call)
    if name not in ("matmul", *UNARY, *BINARY, *_ALONG_ROWS):
        return call
    rows = _rows(call)
    if name == "matmul":
        weights = constant_values(call.args[1])
        wanted = weights is not None and weights.ndim == 2 and str(call.ty.dtype) == "float32" and rows >= _LEAST
        more = padded_rows(rows) if wanted else rows
        args = [call.args[0]]
    elif name in _ALONG_ROWS and not _is_along_rows(call, rows):
        return call
    else:
        args = [arg for arg in (call.args if name in BINARY else call.args[:1]) if rows and _rows(arg) == rows]
        more = padded_rows(rows) if any(_source(builder, arg, rows) is not None for arg in args) else rows
    if more == rows or not args:
        return call
    longer = {arg: _padded(builder, arg, rows, more, alone=name != "matmul") for arg in args}
    every = [longer.get(arg, arg) for arg in call.args]
    shape = list(static_shape(call))
    axis = len(shape) - 2
    if name == "reshape":
        shape[axis] = more
        whole = op.reshape(every[0], shape)
    else:
        whole = relax.Call(call.op, every, call.attrs)
    return op.strided_slice(builder.emit(whole), [axis], [0], [rows])


def _rows(value: Any) -> int:
    """Return the rows of one matrix; 0 for a tensor that is none, as a batch of several."""
    shape = static_shape(value)
    return shape[-2] if len(shape) > 1 and prod(shape[:-2]) == 1 else 0


def _is_along_rows(call: Any, rows: int) -> bool:
    """Return whether an operator computes each row by itself, and leaves the rows where they are."""
    before = static_shape(call.args[0])
    name, last = operator_name(call), len(before) - 1
    if not rows or _rows(call.args[0]) != rows:
        return False
    if name == "reshape":
        return before[-1] == static_shape(call)[-1]
    if name == "strided_slice":
        axes = [int(axis) % len(before) for axis in call.args[1]]
        return axes == [last]
    if name in _REDUCTIONS:
        axes = (call.attrs.axis or []) if call.attrs.keepdims else []
    else:
        axes = call.attrs.axes if name in _NORMS else [call.attrs.axis]
    return [int(axis) % len(before) for axis in axes] == [last]


def _source(builder: Any, value: Any, rows: int) -> Any:
    """Return the matrix padded to more rows of which a value is the first; None for another value."""
    call = bound_to(builder, value, "strided_slice")
    if rows < _LEAST or call is None:
        return None
    ranges: Any = call.args[1:4]
    axes, begin, end = ([int(n) for n in part] for part in ranges)
    first = (axes, begin, end) == ([len(static_shape(value)) - 2], [0], [rows])
    return call.args[0] if first and _rows(call.args[0]) == padded_rows(rows) else None


def _padded(builder: Any, value: Any, rows: int, more: int, *, alone: bool) -> Any:
    """Return a matrix of more rows: the one that a value was cut from, else the value and zeros below it.

    Args:
        alone: pad in a kernel of its own, where a kernel of a product would take it in.
    """
    source = _source(builder, value, rows)
    alone = alone and constant_values(value) is None
    return padded(builder, value, {-2: more}, alone=alone) if source is None else source
