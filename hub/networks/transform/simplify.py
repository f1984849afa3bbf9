"""Passes over an imported network's Relax graph: fewer operators, cheaper ones, and types that LLVM has."""

from collections.abc import Callable
from functools import partial, reduce
from math import isfinite, prod, sqrt
from typing import Any

import numpy as np
import tvm_ffi
from tvm import relax
from tvm.ir import Op

from .relax_graph import (
    bound_to,
    bound_value,
    call_pass,
    constant_values,
    convolved,
    operator_name,
    static_shape,
)
from .reshapes import BINARY, is_constant, split, strided_slice, take

op: Any = relax.op

# Cheaper operators --------------------------------------------------------------------------------------


def simplify() -> Any:
    """Return a pass that drops operators of no effect, and rewrites those that cost more than their meaning does.

    Of the latter are the operators at which ConvertLayout would transpose back and forth, or fail.
    """

    def rewrite(builder: Any, call: Any) -> Any:
        rule = _SIMPLER.get(operator_name(call))
        result = call if rule is None else rule(builder, call)
        binary = isinstance(result, relax.Call) and operator_name(result) in BINARY
        return _aligned(builder, result) if binary else result

    return call_pass("TchubSimplify", rewrite)


def _aligned(builder: Any, call: Any) -> Any:
    """Give what is broadcast to an image four axes, and put it last: Relax infers no layout of fewer, or of constants.

    A row of several numbers keeps its one axis.
    """
    shapes = [*map(static_shape, call.args)]
    short = [len(shape) in (2, 3) or tuple(shape) == (1,) for shape in shapes]
    turned = operator_name(call) in _COMMUTATIVE and prod(shapes[0]) < prod(shapes[1])
    if max(map(len, shapes)) != 4 or not (any(short) or turned):
        return call
    args = [
        builder.emit(op.reshape(arg, [*[1] * (4 - len(shape)), *shape])) if lacks else arg
        for arg, shape, lacks in zip(call.args, shapes, short, strict=True)
    ]
    return relax.Call(call.op, args[::-1] if turned else args, call.attrs)


def _clip(_: Any, call: Any) -> Any:
    """Return an elementwise operator for each bound that there is, whose layout Relax can infer."""
    result = call.args[0]
    for bound, limit in zip(call.args[1:], (op.maximum, op.minimum), strict=True):
        if isfinite(float(bound.value)):
            result = limit(result, relax.const(float(bound.value), _dtype(call.args[0])))
    return result


def _leaky(_: Any, call: Any) -> Any:
    """Return the larger of the input and its share: of `leakyrelu` Relax cannot infer the layout.

    A share of 0 stays: infinity times 0 is no number.
    """
    x, share = call.args[0], float(call.attrs.alpha)
    return op.maximum(x, op.multiply(x, relax.const(share, _dtype(x)))) if 0 < share <= 1 else call


def _gelu(_: Any, call: Any) -> Any:
    """Write it by its definition, so that its error function can be made a polynomial."""
    x, half, scale = call.args[0], relax.const(0.5, "float32"), relax.const(sqrt(0.5), "float32")
    if _dtype(x) != "float32":
        return call
    return op.multiply(x, op.add(half, op.multiply(half, op.erf(op.multiply(x, scale)))))


def _squeeze(_: Any, call: Any) -> Any:
    """Name the axes of extent 1 alone, and leave one: ConvertLayout takes all that are named, and fails at none."""
    x = call.args[0]
    shape = static_shape(x)
    axes = [axis for axis in (call.attrs.axis or range(len(shape))) if shape and shape[int(axis)] == 1]
    if not shape or len(axes) == len(shape):
        return op.reshape(x, call.ty.shape)
    return op.squeeze(x, [int(axis) % len(shape) for axis in axes]) if axes else x


def _permute(_: Any, call: Any) -> Any:
    """Count the axes from the front: those from the end ConvertLayout takes for letters before A."""
    axes, x = call.attrs.axes, call.args[0]
    return op.permute_dims(x, [int(axis) % x.ty.ndim for axis in axes]) if axes and min(axes) < 0 else call


def _without(nothing: int) -> Callable[[Any, Any], Any]:
    """Drop what attention without a mask adds (zeros), and the factor of queries that were scaled before (1)."""

    def rule(_: Any, call: Any) -> Any:
        neutral = _same_type(call, call.args[0]) and _is_all(call.args[1], nothing)
        return call.args[0] if neutral else call

    return rule


def _power(_: Any, call: Any) -> Any:
    """Write a small whole power as products: libm's, called element by element, takes fifty times as long."""
    x, exponent = call.args
    values = constant_values(exponent)
    count = float(values) if values is not None and not values.ndim else 0.0
    if count not in range(2, 5) or not _dtype(x).startswith("float"):
        return call
    product = x
    for _ in range(int(count) - 1):
        product = op.multiply(product, x)
    return product


def _quantize(builder: Any, call: Any) -> Any:
    """Write it as operators on floats, whose layout Relax can infer and which become part of a product's kernel.

    It is rounded to the nearest even number, as ONNX has it.
    """
    x, (scale, zero), dtype = call.args[0], _parameters(builder, call), str(call.attrs.out_dtype)
    if scale is None or zero is None or _dtype(x) != "float32" or dtype not in _QUANTISED:
        return call
    scaled = x if _is_all(scale, 1) else builder.emit(op.divide(x, scale))
    value = builder.emit(op.add(builder.emit(op.round(scaled)), zero))
    least, most = (relax.const(float(limit), "float32") for limit in _QUANTISED[dtype])
    return op.astype(builder.emit(op.minimum(builder.emit(op.maximum(value, least)), most)), dtype)


def _dequantize(builder: Any, call: Any) -> Any:
    x = call.args[0]
    if str(call.attrs.out_dtype) != "float32" or constant_values(x) is not None:
        return call
    scale, zero = _parameters(builder, call)
    if scale is None or zero is None:
        return call
    value = _rounded(builder, x)
    value = builder.emit(op.astype(x, "float32")) if value is None else value
    return op.multiply(builder.emit(op.subtract(value, zero)), scale)


def _parameters(builder: Any, call: Any) -> list[Any]:
    """Return scale and zero point of a call as floats with its axes: one number, or one for each channel.

    They are tensors, so that two operators which differ in them alone are one task. None stands for other parameters.
    """
    whole = static_shape(call)
    axis = int(call.attrs.axis) % max(1, len(whole))
    results: list[Any] = []
    for value in call.args[1:]:
        array = constant_values(value)
        own = array.shape if array is not None else static_shape(value)
        shape = [1] * len(whole)
        if own == whole[axis : axis + 1]:
            shape[axis] = own[0]
        known = array is not None or getattr(value.ty, "ndim", 0) == len(own)
        if not whole or not known or prod(shape) != prod(own):
            results.append(None)
        elif array is not None:
            results.append(relax.const(array.astype("float32").reshape(shape)))
        else:
            results.append(builder.emit(op.reshape(builder.emit(op.astype(value, "float32")), shape)))
    return results


def _is_all(value: Any, number: float) -> bool:
    values = constant_values(value)
    return values is not None and bool((values == number).all())


def _cast(builder: Any, call: Any) -> Any:
    """Take the floats of which integers were made."""
    value = _rounded(builder, call.args[0]) if _dtype(call) == "float32" else None
    return call if value is None else value


def _rounded(builder: Any, value: Any) -> Any:
    """Return the floats of which a value is the integers, as `_quantize` makes them; None of any other."""
    cast: Any = bound_to(builder, value, "astype")
    if cast is None or _dtype(cast) not in _QUANTISED or _dtype(cast.args[0]) != "float32":
        return None
    below, (least, most) = cast.args[0], _QUANTISED[_dtype(cast)]
    for name, limit in (("minimum", most), ("maximum", least)):
        step: Any = bound_to(builder, below, name)
        if step is None or not _is_all(step.args[1], limit):
            return None
        below = step.args[0]
    shifted: Any = bound_to(builder, below, "add")
    if shifted is not None:  # by a zero point
        zero = constant_values(shifted.args[1])
        if zero is None or (zero != np.round(zero)).any():
            return None
        below = shifted.args[0]
    return None if bound_to(builder, below, "round") is None else cast.args[0]


def _convolution_of_one_row(builder: Any, call: Any) -> Any:
    """Convolve an image of one row, which can be made channels-last."""
    attrs = call.attrs
    if (attrs.data_layout, attrs.kernel_layout) != ("NCW", "OIW"):
        return call
    left, right = map(int, attrs.padding)
    stride, dilation = int(attrs.strides[0]), int(attrs.dilation[0])
    image, weight = (builder.emit(op.expand_dims(arg, [2])) for arg in call.args)
    convolved = op.nn.conv2d(
        image, weight, [1, stride], [0, left, 0, right], [1, dilation], int(attrs.groups), "NCHW", "OIHW",
        "NCHW", attrs.out_dtype or None,
    )  # fmt: skip
    return op.squeeze(builder.emit(convolved), [2])


def _product_with_one_matrix(builder: Any, call: Any) -> Any:
    """Multiply by a weight itself where it is repeated for each matrix of a batch, as PyTorch does for transposed ones.

    The copies would be constants: so many times the memory that is read.
    """
    x, weight = (_repeated(builder, one) for one in call.args)
    (shape, other), result = map(static_shape, call.args), static_shape(call)
    if weight is not None and len(result) > 2 and shape[:-2] == result[:-2]:
        rows = builder.emit(op.reshape(call.args[0], [prod(shape[:-1]), shape[-1]]))
        product = builder.emit(op.matmul(rows, builder.emit(weight), call.attrs.out_dtype or None))
        return op.reshape(product, call.ty.shape)
    if x is not None and len(result) > 2 and other[:-2] == result[:-2]:
        return op.matmul(builder.emit(x), call.args[1], call.attrs.out_dtype or None)
    return call


def _repeated(builder: Any, value: Any) -> Any:
    """Return the matrix, made of constants alone, that a batch of matrices repeats; None for any other."""
    call, shape = bound_value(builder, value), static_shape(value)
    if isinstance(call, relax.Call) and operator_name(call) == "reshape":  # of the axes of the batch
        call = bound_value(builder, call.args[0])
    if (
        not isinstance(call, relax.Call)
        or operator_name(call) != "broadcast_to"
        or static_shape(call)[-2:] != shape[-2:]
    ):
        return None
    matrix = call.args[0]
    own = static_shape(matrix)
    is_one = own[-2:] == shape[-2:] and prod(own[:-2]) == 1 and len(own) > 1
    is_known = is_one and is_constant(matrix, partial(bound_value, builder))
    return op.reshape(matrix, list(shape[-2:])) if is_known else None


def _absorb_padding(builder: Any, call: Any) -> Any:
    """Let a convolution of an image padded with zeros pad by itself."""
    padded, attrs = bound_to(builder, call.args[0], "nn.pad"), call.attrs
    if attrs.data_layout != "NCHW" or padded is None or not _zeros_around(padded):
        return call
    top, bottom, left, right = (int(width) for width in padded.attrs.pad_width[4:])
    sides = zip(map(int, attrs.padding), (top, left, bottom, right), strict=True)
    padding = [own + more for own, more in sides]
    return convolved(call, padded.args[0], call.args[1], padding, attrs.out_dtype or None)


def _zeros_around(call: Any) -> bool:
    """Return whether a call pads an image's rows and columns, and nothing else, with zeros."""
    attrs: Any = call.attrs
    widths = [int(w) for w in attrs.pad_width]
    return attrs.pad_mode == "constant" and not float(attrs.pad_value) and len(widths) == 8 and not any(widths[:4])


def _of_several(combine: Callable[[Any, Any], Any], *, mean: bool = False) -> Callable[[Any, Any], Any]:
    """Combine tensors one after the other where TVM's importer of ONNX stacks them and reduces the new axis."""

    def rule(builder: Any, call: Any) -> Any:
        stacked, attrs = bound_to(builder, call.args[0], "stack"), call.attrs
        if stacked is None or int(stacked.attrs.axis or 0) or attrs.keepdims or [*map(int, attrs.axis or ())] != [0]:
            return call
        # What was broadcast to be stacked is broadcast by each operator.
        broadcast = [(bound_to(builder, part, "broadcast_to"), part) for part in stacked.args[0]]
        result = reduce(
            lambda one, other: builder.emit(combine(one, other)),
            [part if before is None else before.args[0] for before, part in broadcast],
        )
        if static_shape(result) != static_shape(call):  # all of them were broadcast before
            result = builder.emit(op.broadcast_to(result, call.ty.shape))
        return op.divide(result, relax.const(len(broadcast), _dtype(call))) if mean else result

    return rule


def settled_choices() -> Any:
    """Return a pass that drops choices of the same everywhere, as where a mask leaves some key to each query."""

    def rewrite(_: Any, call: Any) -> Any:
        settled = operator_name(call) == "where" and _same_type(call, call.args[1]) and _is_all(call.args[0], 1)
        return call.args[1] if settled else call

    return call_pass("TchubSettledChoices", rewrite)


def _same_type(one: Any, other: Any) -> bool:
    return tvm_ffi.structural_equal(one.ty, other.ty)


def _dtype(value: Any) -> str:
    return str(getattr(value.ty, "dtype", ""))


_COMMUTATIVE = frozenset(("add", "multiply", "maximum", "minimum"))
# Integer types all of whose numbers float32 holds, and their limits.
_QUANTISED = {name: (np.iinfo(name).min, np.iinfo(name).max) for name in ("int8", "uint8", "int16", "uint16")}
_SIMPLER: dict[str, Callable[[Any, Any], Any]] = {
    "nn.pad": lambda _, call: call if any(map(int, call.attrs.pad_width)) else call.args[0],
    "broadcast_to": lambda _, call: call.args[0] if _same_type(call, call.args[0]) else call,
    "clip": _clip, "nn.gelu": _gelu, "nn.leakyrelu": _leaky, "squeeze": _squeeze, "permute_dims": _permute,
    "quantize": _quantize, "dequantize": _dequantize, "astype": _cast,
    "add": _without(0), "multiply": _without(1), "power": _power,
    "sum": _of_several(op.add), "mean": _of_several(op.add, mean=True),
    "max": _of_several(op.maximum), "min": _of_several(op.minimum),
    "split": split, "strided_slice": strided_slice, "take": take,
    "nn.conv1d": _convolution_of_one_row, "nn.conv2d": _absorb_padding, "matmul": _product_with_one_matrix,
}  # fmt: skip


# Operators that TVM lacks -------------------------------------------------------------------------------

# LLVM compares booleans neither as integers nor as floats; integers of 8 bits it does.
_COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
_SCANS = ("cumsum", "cumprod")
_POOLS = tuple(f"nn.{kind}_pool{dims}d" for kind in ("avg", "max") for dims in (1, 2, 3))
# TVM has these for channels-first images alone, yet infers other layouts for them.
_CHANNELS_FIRST = ("nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose")


def legal_operators() -> Any:
    """Return a pass that gives operators on booleans PyTorch's types, compares NaN as it does, and cuts pools' windows.

    NaN is unequal to everything, itself included. By LLVM's comparison it is neither equal nor unequal, and TVM takes
    whatever is compared with itself for equal. Of numbers none of which exceeds the least one, such as a row that is
    masked throughout, the largest is the first, for TVM the one before it: where some are the least and others -inf,
    that is not the first of the larger ones.
    """

    def rewrite(_builder: Any, call: Any) -> Any:
        name = operator_name(call)
        if name in ("equal", "not_equal") and _dtype(call.args[0]).startswith("float"):
            itself = call.args[0].same_as(call.args[1])
            unequal = op.isnan(call.args[0]) if itself else op.logical_not(op.equal(*call.args))
            return unequal if name == "not_equal" else op.logical_not(unequal) if itself else call
        if name in ("argmax", "argmin"):
            return op.maximum(call, relax.const(0, _dtype(call)))
        if name in _COMPARISONS and all(_dtype(x) == "bool" for x in call.args):
            return relax.Call(call.op, [op.astype(x, "int8") for x in call.args])
        if name in _POOLS:
            return _window_within(call)
        if name in _SCANS and _dtype(call.args[0]) == "bool":
            dtype = str(call.attrs.dtype or "int64")
            return getattr(op, name)(op.astype(call.args[0], dtype), call.attrs.axis, dtype, bool(call.attrs.exclusive))
        return call

    return call_pass("TchubLegalOperators", rewrite)


def _window_within(call: Any) -> Any:
    """Cut a pool's window to the image: with `ceil_mode` TVM pads the image to the window's size, maybe gigabytes."""
    attrs, size = call.attrs, [*map(int, call.attrs.pool_size)]
    image, around = static_shape(call.args[0])[2:], [*map(int, attrs.padding)]
    whole = [sum(each) for each in zip(image, around, around[len(size) :], strict=False)]
    if max(map(int, attrs.dilation)) > 1 or not str(attrs.layout).startswith("NC") or len(whole) != len(size):
        return call
    cut = [min(each) for each in zip(size, whole, strict=True)]
    strides = [1 if one == of else int(step) for one, of, step in zip(cut, whole, attrs.strides, strict=True)]
    kept = (around, attrs.dilation, attrs.ceil_mode, attrs.count_include_pad, attrs.layout, attrs.out_layout)
    pool = getattr(op.nn, operator_name(call).removeprefix("nn."))
    return call if cut == size else pool(call.args[0], cut, strides, *kept)


def channels_first_only() -> Any:
    """Return a pass that lowers operators which TVM has for channels-first images alone, before layouts are chosen."""

    def rewrite(builder: Any, call: Any) -> Any:
        if operator_name(call) in _CHANNELS_FIRST and isinstance(call.op, Op):
            return call.op.get_attr("FLegalize")(builder, call)
        return call

    return call_pass("TchubChannelsFirstOnly", rewrite)
