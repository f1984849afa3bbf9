"""Constant folding of a Relax graph: by NumPy where it has the operator, for TVM compiles each one that it folds."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tvm
from tvm import IRModule, relax
from tvm.ir.expr import GenericConst
from tvm.tirx import FloatImm, IntImm

from .relax_graph import (
    bound_to,
    bound_value,
    call_pass,
    constant_address,
    constant_values,
    operator_name,
    static_shape,
)


def fold_arrays() -> Any:
    """Return a Relax pass that computes operators of constants by NumPy: batch norms' factors, layouts of weights.

    What several calls compute of the same constants, as the steps of a recurrent layer do, is computed once.
    """
    known: dict[tuple[Any, ...], tuple[Any, Any]] = {}

    def value_of(arg: Any) -> Any:
        if isinstance(arg, list):
            return [value_of(one) for one in arg]
        if isinstance(arg, IntImm | FloatImm):  # a batch norm's epsilon
            dtype: Any = arg.ty
            return np.array(arg.value, str(dtype.dtype))
        return constant_values(arg)

    def resolved(builder: Any, arg: Any) -> Any:
        if isinstance(arg, relax.Tuple):
            return [bound_value(builder, one) for one in arg.fields]
        return bound_value(builder, arg)

    computed: dict[str, Any] = {
        **{name: getattr(np, name) for name in _UFUNCS},
        "where": lambda call, *choices: np.where(*choices),
        "divide": _divided,
        # Of the state that a recurrent layer begins with, or the queries of a detector.
        "matmul": lambda call, x, y: np.matmul(x.astype(str(call.ty.dtype)), y.astype(str(call.ty.dtype))),
        "take": _taken,
        "nn.layer_norm": _normalised,
        "nn.relu": lambda call, x: np.maximum(x, 0),
        "nn.softmax": _softmax,
        "sigmoid": lambda call, x: 1 / (1 + np.exp(-x)),
        "astype": lambda call, x: x,
        "concat": lambda call, parts: np.concatenate(parts, int(call.attrs.axis)),
        "strided_slice": _sliced,  # the weights of a recurrent layer's directions and gates
        "broadcast_to": lambda call, x: np.broadcast_to(x, static_shape(call)),
        "tile": lambda call, x: np.tile(x, [int(times) for times in call.attrs.repeats]),
        "permute_dims": lambda call, x: np.transpose(x, [int(axis) for axis in call.attrs.axes or ()] or None),
        **dict.fromkeys(("reshape", "expand_dims", "squeeze"), lambda call, x: x.reshape(static_shape(call))),
    }

    def rewrite(builder: Any, call: Any) -> Any:
        compute = computed.get(operator_name(call))
        if operator_name(call) == "shape_to_tensor":  # the extent that TVM adds to negative indices
            return _shape_as_tensor(builder, call)
        if compute is None or not _has_static_shape(call) or str(call.ty.dtype) in _LACKED:
            return call
        if str(getattr(call.attrs, "mode", "")) == "nan":  # where an index is out of range
            return call
        if compute is _normalised and not _is_of_rows(call):
            return call
        arguments = [resolved(builder, arg) for arg in call.args if not isinstance(arg, relax.ShapeExpr)]
        identities = [_identity(arg) for arg in arguments]
        if None in identities:
            return call
        key = (operator_name(call), str(call.attrs), static_shape(call), *identities)
        if key not in known:
            values = [value_of(arg) for arg in arguments]
            with np.errstate(all="ignore"):  # infinities stay, as a mask's
                value = compute(*values) if isinstance(compute, np.ufunc) else compute(call, *values)
            dtype = str(call.ty.dtype)  # without which TVM makes an int64 array a constant of int32
            constant = relax.const(np.asarray(value, dtype, order="C"), dtype)
            known[key] = arguments, constant  # whose addresses nothing else may have then
        return known[key][1]

    return call_pass("TchubFoldArrays", rewrite)


# Of weights, of the row that each step of a loop takes, and of positions in an image.
_UFUNCS = (
    *("add", "bitwise_and", "cos", "floor", "greater_equal", "less", "log", "logical_and", "maximum", "minimum"),
    *("multiply", "negative", "sin", "sqrt", "subtract"),
)
_LACKED = "bfloat16", "float8_e4m3fn", "float8_e5m2"  # types that NumPy does not have


def _has_static_shape(call: Any) -> bool:
    shape = getattr(call.ty, "shape", None)
    return shape is not None and len(static_shape(call)) == len(shape)


def _shape_as_tensor(builder: Any, call: Any) -> Any:
    """Return the shape of a tensor as a constant where it is static, else the call that asks for it."""
    shape = bound_to(builder, call.args[0], "shape_of")
    extents = static_shape(shape.args[0]) if shape is not None and _has_static_shape(shape.args[0]) else ()
    return relax.const(np.array(extents, "int64"), "int64") if extents else call


def _divided(_call: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return a quotient, of whole numbers without its fraction."""
    if x.dtype.kind not in "iu":
        return x / y
    return x // y + ((x % y != 0) & ((x < 0) != (y < 0)))


def _normalised(call: Any, x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    axes = tuple(map(int, call.attrs.axes))
    deviation = x - x.mean(axes, keepdims=True)
    variance = np.square(deviation).mean(axes, keepdims=True)
    return deviation / np.sqrt(variance + call.attrs.epsilon) * weight + bias


def _is_of_rows(norm: Any) -> bool:
    """Return whether a norm is of the last axes, and not in half precision, whose squares NumPy would not hold."""
    axes = sorted(int(axis) % norm.ty.ndim for axis in norm.attrs.axes)
    return axes == list(range(norm.ty.ndim))[-len(axes) :] and str(norm.ty.dtype) in ("float32", "float64")


def _softmax(call: Any, x: np.ndarray) -> np.ndarray:
    axis = int(call.attrs.axis)
    powers = np.exp(x - x.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


def _taken(call: Any, x: np.ndarray, index: np.ndarray) -> np.ndarray:
    axis = call.attrs.axis
    return np.take(x, index, None if axis is None else int(axis), mode="wrap" if call.attrs.mode == "wrap" else "clip")


def _sliced(_call: Any, x: np.ndarray, *bounds: list[np.ndarray]) -> np.ndarray:
    """Return a part of a constant: axes, where each begins and ends, and steps where they are not 1."""
    parts = [slice(None)] * x.ndim
    for axis, *of_axis in zip(*bounds, strict=True):
        parts[int(axis)] = slice(*map(int, of_axis))
    return x[tuple(parts)]


def without_subnormals() -> Any:
    """Return a Relax pass that makes zeros of the weights that are too small for a float32 of full precision.

    Training leaves some behind where it shrinks weights. A CPU takes a hundred times as long for each product with one,
    and what it adds is below any sum's last digit. Other numbers stay: a mask's 1e-45 keeps a logarithm finite.
    """
    known: dict[tuple[Any, ...], tuple[Any, Any]] = {}

    def flushed(value: Any) -> Any | None:
        """Return what replaces an argument, None where nothing does."""
        if isinstance(value, relax.Tuple):  # of a tensor function's arguments
            fields = replaced(value.fields)
            return None if fields is None else relax.Tuple(fields)
        key = _identity(value)
        if not isinstance(key, tuple) or len(static_shape(value)) < 2 or str(value.ty.dtype) != "float32":
            return None
        if key not in known:
            values: Any = constant_values(value)
            small = (np.abs(values) < np.finfo(np.float32).tiny) & (values != 0)
            known[key] = value, relax.const(np.where(small, np.float32(0), values)) if small.any() else None
        return known[key][1]

    def replaced(values: Any) -> list[Any] | None:
        results = [(value, flushed(value)) for value in values]
        return (
            [old if new is None else new for old, new in results]
            if any(new is not None for _, new in results)
            else None
        )

    def rewrite(_: Any, call: Any) -> Any:
        name = operator_name(call)
        adds_up = name in ("matmul", "call_tir") or name.startswith("nn.conv")
        args = replaced(call.args) if adds_up else None
        return call if args is None else relax.Call(call.op, args, call.attrs, call.ty_args)

    return call_pass("TchubWithoutSubnormals", rewrite)


def scales_as_parameters() -> Any:
    """Return a Relax pass that makes tensors of the numbers by which a quantised network scales and shifts.

    As numbers they would be part of a kernel's code, and layers that differ in their scale alone as many tasks.
    """

    def rewrite(builder: Any, call: Any) -> Any:
        name = operator_name(call)
        if name == "round":
            scaled = bound_to(builder, call.args[0], "multiply", "divide")
            return call if scaled is None else relax.op.round(builder.emit(_with_parameters(scaled)))
        behind = name in _SCALING and any(_is_rounded(builder, arg) for arg in call.args)
        return _with_parameters(call) if behind else call

    return call_pass("TchubScalesAsParameters", rewrite)


_SCALING = ("add", "divide", "multiply", "subtract")
_LONGEST = 6  # from a rounded value over its zero point, its bounds and its integers


def _is_rounded(builder: Any, value: Any) -> bool:
    """Return whether a value is rounded, or a whole number in floats, but for a shift and bounds."""
    for _ in range(_LONGEST):
        call = bound_to(builder, value, "round", "astype", "add", "subtract", "maximum", "minimum")
        if call is None:
            return False
        value = call.args[0]
        whole = operator_name(call) == "astype" and str(value.ty.dtype) == "int32"
        if whole or operator_name(call) == "round":
            return True
    return False


def _with_parameters(call: Any) -> Any:
    shape = static_shape(call)
    numbers = [constant_values(arg) for arg in call.args]
    args: list[Any] = [
        arg if x is None or x.ndim or x.dtype != np.float32 else relax.const(x.reshape((1,) * len(shape)))
        for arg, x in zip(call.args, numbers, strict=True)
    ]
    return relax.Call(call.op, args, call.attrs)


def _identity(argument: Any) -> Any:
    """Return what tells a constant, a number or several from others; None for what is computed."""
    if isinstance(argument, list):
        parts = tuple(map(_identity, argument))
        return None if None in parts else parts
    if isinstance(argument, IntImm | FloatImm):
        return argument.value
    if (address := constant_address(argument)) is None:
        return None
    return address, static_shape(argument), str(argument.ty.dtype)  # a part of a tensor may begin where it does


def fold_operators() -> Any:
    """Return TVM's `FoldConstant`, which sees only what follows from constants alone.

    It legalises every operator that it sees, which takes minutes where a loop was written out.
    """

    @tvm.transform.module_pass(opt_level=0, name="TchubFoldOperators")
    def run(mod: Any, _context: Any) -> Any:
        fold, result = relax.transform.FoldConstant(), mod
        tensor_functions = {var: one for var, one in mod.functions_items() if not isinstance(one, relax.Function)}
        for var, function in mod.functions_items():
            if not isinstance(function, relax.Function):
                continue
            body: Any = function.body
            every: list[Any] = [one for block in body.blocks for one in block.bindings]
            if any(isinstance(getattr(one, "value", None), relax.If) for one in every):  # in which there may be more
                return fold(mod)
            known = set(relax.analysis.computable_at_compile_time(function))
            bindings: list[Any] = [one for one in every if one.var in known and isinstance(one, relax.VarBinding)]
            if not any(isinstance(one.value, relax.Call) for one in bindings):
                continue
            results: list[Any] = [one.var for one in bindings]
            block, types = relax.DataflowBlock(bindings), relax.TupleType([one.ty for one in results])
            part = relax.Function([], relax.SeqExpr([block], relax.Tuple(results)), types)
            folded: Any = relax.transform.CanonicalizeBindings()(fold(IRModule({**tensor_functions, var: part})))[var]
            pairs = zip(results, folded.body.body.fields, strict=True)
            constants = {one: value for one, value in pairs if isinstance(value, GenericConst)}
            result = result.clone()
            result[var] = _with_constants(function, constants)
        return result if result is mod else relax.transform.CanonicalizeBindings()(result)

    return run


def _with_constants(function: Any, constants: Mapping[Any, Any]) -> Any:
    """Return a Relax function with constants in place of what some of its variables are bound to."""
    blocks = []
    for block in function.body.blocks:
        bindings = [
            relax.VarBinding(one.var, constants[one.var]) if one.var in constants else one for one in block.bindings
        ]
        blocks.append(type(block)(bindings))
    body = relax.SeqExpr(blocks, function.body.body)
    return relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs)


def fold_functions() -> Any:
    """Return a Relax pass that computes calls of tensor functions of constants, such as those that permute weights.

    TVM's `FoldConstant` does so too, but compiles each function by itself, which takes longer than to run it.
    """

    @tvm.transform.module_pass(opt_level=0, name="TchubFoldFunctions")
    def run(mod: Any, _context: Any) -> Any:
        functions: dict[str, Any] = {}

        def note(builder: Any, call: Any) -> Any:
            if _constant_arguments(builder, call) is not None:
                name = call.args[0].name_hint
                functions[name] = mod[call.args[0]].with_attr("global_symbol", name)
            return call

        call_pass("TchubFindFunctions", note)(mod)
        if not functions:
            return mod
        try:
            library = tvm.tirx.build(IRModule(functions), target="llvm")
        except RuntimeError:  # TVM's: `FoldConstant`, which follows, leaves alone the one function that does not build
            return mod

        known: dict[tuple[Any, ...], tuple[Any, Any]] = {}

        def rewrite(builder: Any, call: Any) -> Any:
            constants = _constant_arguments(builder, call)
            if constants is None or call.args[0].name_hint not in functions:  # constant by what was computed just now
                return call
            key = call.args[0].name_hint, *map(constant_address, constants)
            if key not in known:
                results = [tvm.runtime.empty(tuple(map(int, one.shape)), str(one.dtype)) for one in _results(call)]
                library[call.args[0].name_hint](*(one.value for one in constants), *results)
                computed: list[Any] = [relax.const(result) for result in results]
                several = isinstance(call.ty, relax.TupleType)
                known[key] = constants, relax.Tuple(computed) if several else computed[0]
            return known[key][1]

        return call_pass("TchubFoldFunctions", rewrite)(mod)

    return run


def _results(call: Any) -> list[Any]:
    """Return the types of the tensors that a call returns."""
    return list(getattr(call.ty, "fields", [call.ty]))


def _constant_arguments(builder: Any, call: Any) -> list[Any] | None:
    """Return the arguments of a tensor function's call where all are constants, else None."""
    if operator_name(call) != "call_tir" or len(call.args) != 2:  # a third argument holds symbolic sizes
        return None
    arguments = [bound_value(builder, one) for one in call.args[1]]
    return arguments if all(constant_address(one) is not None for one in arguments) else None
