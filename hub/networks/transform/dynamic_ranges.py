"""Scale and zero point of dynamically quantised data by one kernel, which reads the data once.

As ONNX's `DynamicQuantizeLinear` defines them: of the least and the largest number, and of zero. As operators they are
two reductions and a handful of functions of one number, each of which takes as long to call as it does to compute.
"""

from math import prod
from typing import Any

from tvm import relax, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from .elementwise import FEW
from .relax_graph import OPAQUE, bound_to, bound_value, call_pass, constant_values, operator_name, static_shape

op: Any = relax.op

_LANES, _PARTS = 16, 16  # numbers of a vector; parts of the data that cores share
_MOST = 255.0  # the largest code
_NAME = "dynamic_range"


def dynamic_ranges() -> Any:
    """Return a pass that computes the scale and the zero point of dynamically quantised data together."""

    def rewrite(builder: Any, call: Any) -> Any:
        name = operator_name(call)
        if name == "divide" and _is_number(call.args[1], _MOST):
            data = _data_of_scale(builder, call)
            if data is not None:
                flat = builder.emit(op.reshape(data, [prod(static_shape(data))]))
                names = {"primfunc_name_hint": _NAME, "primfunc_attrs": {"op_pattern": OPAQUE}}
                return relax.TupleGetItem(builder.emit(builder.call_te(dynamic_range, flat, **names)), 0)
        if name == "round" and (scale := _of_range(builder, _scale_of_zero(builder, call))) is not None:
            return relax.TupleGetItem(scale.tuple_value, 1)
        if name == "astype" and str(call.ty.dtype) == "float32" and static_shape(call) == ():
            code = bound_to(builder, call.args[0], "astype")
            zero = None if code is None or str(code.ty.dtype) != "uint8" else _of_range(builder, code.args[0])
            return call if zero is None else zero  # it is a whole number
        if name == "reshape":
            return _scaled_constants(builder, call)
        return call

    return call_pass("TchubDynamicRanges", rewrite)


def _scaled_constants(builder: Any, reshape: Any) -> Any:
    """Return constants times one number in another shape without a reshape, so that other kernels compute it."""
    product = bound_to(builder, reshape.args[0], "multiply")
    factors = [] if product is None else list(product.args)
    for constant, one in (factors, factors[::-1]) if factors else ():
        values = constant_values(constant)
        view = bound_to(builder, one, "reshape")
        number = one if view is None else view.args[0]
        if values is not None and values.size > 1 and static_shape(number) == ():
            return op.multiply(number, relax.const(values.reshape(static_shape(reshape))))
    return reshape


def _is_number(value: Any, number: float) -> bool:
    values = constant_values(value)
    return values is not None and values.size == 1 and float(values.item()) == number


def _other(builder: Any, value: Any, name: str, number: float) -> Any:
    """Return the argument of a call of an operator whose other one is a number; None for any other value."""
    call = bound_to(builder, value, name)
    if call is None:
        return None
    return next((call.args[1 - at] for at in range(2) if _is_number(call.args[at], number)), None)


def _data_of_scale(builder: Any, scale: Any) -> Any:
    """Return the data whose range, with zero, a quotient is a part of; None for any other."""
    width = bound_to(builder, scale.args[0], "subtract")
    if width is None:
        return None
    ends = (_other(builder, one, name, 0.0) for one, name in zip(width.args, ("maximum", "minimum"), strict=True))
    top, low = (bound_to(builder, end, name) for end, name in zip(ends, ("max", "min"), strict=True))
    if top is None or low is None or not top.args[0].same_as(low.args[0]):
        return None
    whole = static_shape(top) == static_shape(low) == ()
    return top.args[0] if whole and str(top.ty.dtype) == "float32" else None


def _scale_of_zero(builder: Any, rounded: Any) -> Any:
    """Return the scale by which a rounded number is a zero point; None for any other."""
    bounded = _other(builder, _other(builder, rounded.args[0], "minimum", _MOST), "maximum", 0.0)
    negated = bound_to(builder, bounded, "subtract")
    if negated is None or not _is_number(negated.args[0], 0.0):
        return None
    quotient = bound_to(builder, negated.args[1], "divide")
    if quotient is None or _other(builder, quotient.args[0], "minimum", 0.0) is None:
        return None
    return quotient.args[1]


def _of_range(builder: Any, value: Any) -> Any:
    """Return the result of the kernel that a value is; None for any other."""
    result = bound_value(builder, value)
    call = bound_to(builder, result.tuple_value, "call_tir") if isinstance(result, relax.TupleGetItem) else None
    return result if call is not None and call.args[0].name_hint.startswith(_NAME) else None


def dynamic_range(x: Any) -> Any:
    """Return the tensor function of the scale and the zero point, both float32, of data `[numbers]`."""

    def body(inputs: Any, outputs: Any) -> Any:
        with IRBuilder() as builder, T.serial(0, 1):
            _write(inputs[0], *outputs)
        return builder.get()

    return te.extern([[], []], [x], body, name=_NAME, dtype=["float32"] * 2)


def _write(x: Any, scale: Any, zero: Any) -> None:
    count = int(x.shape[0])
    vectors, parts = count // _LANES, _PARTS if count > FEW else 1
    each = -(-vectors // parts)
    nothing, most = (tirx.const(number, "float32") for number in (0, _MOST))
    tops, lows = (T.alloc_buffer([parts * _LANES], "float32") for _ in range(2))
    ends = T.alloc_buffer([2], "float32")

    def widen(top: Any, low: Any, at: Any, high: Any, least: Any) -> None:
        T.buffer_store(top, te.max(top[at], high), [at])
        T.buffer_store(low, te.min(low[at], least), [at])

    with T.parallel(0, parts) if parts > 1 else T.serial(0, parts) as part:
        top, low = (T.alloc_buffer([_LANES], "float32") for _ in range(2))
        with T.vectorized(0, _LANES) as lane:
            T.buffer_store(top, nothing, [lane])
            T.buffer_store(low, nothing, [lane])
        with T.serial(0, te.max(te.min(each, vectors - part * each), 0)) as step, T.vectorized(0, _LANES) as lane:
            value = x[(part * each + step) * _LANES + lane]
            widen(top, low, lane, value, value)
        with T.vectorized(0, _LANES) as lane:
            T.buffer_store(tops, top[lane], [part * _LANES + lane])
            T.buffer_store(lows, low[lane], [part * _LANES + lane])
    for at in range(2):
        T.buffer_store(ends, nothing, [at])
    with T.serial(0, parts * _LANES) as i:
        T.buffer_store(ends, te.max(ends[0], tops[i]), [0])
        T.buffer_store(ends, te.min(ends[1], lows[i]), [1])
    with T.serial(0, count % _LANES) as i:
        value = x[vectors * _LANES + i]
        T.buffer_store(ends, te.max(ends[0], value), [0])
        T.buffer_store(ends, te.min(ends[1], value), [1])
    T.buffer_store(scale, (ends[0] - ends[1]) / most, [])
    T.buffer_store(zero, tirx.nearbyint(te.min(te.max(nothing - ends[1] / scale[()], nothing), most)), [])
