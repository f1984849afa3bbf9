"""Passes over an imported network's Relax graph: fewer operators, cheaper ones, and types that LLVM has."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod, sqrt
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from tvm import IRModule


@cache
def simplify() -> Any:
    """Return a pass that drops operators of no effect, and rewrites those that cost more than their meaning does.

    Of the latter are the operators at which ConvertLayout would transpose back and forth, or fail.
    """
    import tvm_ffi
    from tvm import relax
    from tvm.ir import Op
    from tvm.ir.transform import module_pass
    from tvm.relax.expr_functor import PyExprMutator, mutator

    names = (
        "nn.pad",
        "nn.conv1d",
        "nn.conv2d",
        "clip",
        "nn.gelu",
        "squeeze",
        "power",
        "broadcast_to",
        "add",
        "multiply",
    )
    pad, row, conv, clip, gelu, squeeze, power, broadcast, *neutral = (Op.get(f"relax.{name}") for name in names)

    @mutator
    class Simplifier(PyExprMutator):
        def visit_call_(self, call: Any) -> Any:
            call = super().visit_call_(call)
            if call.op == clip:
                return self._clip(call)
            if call.op == gelu and str(call.args[0].ty.dtype) == "float32":
                return self._gelu(call.args[0])
            if call.op == pad and not any(map(int, call.attrs.pad_width)):
                return call.args[0]
            if call.op == conv:
                return self._absorb_padding(call)
            if call.op == row and (call.attrs.data_layout, call.attrs.kernel_layout) == ("NCW", "OIW"):
                return self._of_one_row(call)
            if call.op == power:
                return self._power(call)
            if call.op == broadcast and _same_type(call, call.args[0]):
                return call.args[0]
            if call.op in neutral and _same_type(call, call.args[0]):
                return self._without_effect(call)
            if call.op == squeeze and call.attrs.axis:
                rank = call.args[0].ty.ndim
                return relax.op.squeeze(call.args[0], [int(axis) % rank for axis in call.attrs.axis])
            return call

        def _clip(self, call: Any) -> Any:
            """Return two elementwise operators, whose layout Relax can infer."""
            dtype = str(call.args[0].ty.dtype)
            low, high = (relax.const(float(x.value), dtype) for x in call.args[1:])
            return relax.op.minimum(relax.op.maximum(call.args[0], low), high)

        def _gelu(self, x: Any) -> Any:
            """By its definition, so that its error function can be made a polynomial."""
            half, scale = relax.const(0.5, "float32"), relax.const(sqrt(0.5), "float32")
            op = relax.op
            return op.multiply(x, op.add(half, op.multiply(half, op.erf(op.multiply(x, scale)))))

        def _without_effect(self, call: Any) -> Any:
            """Attention without a mask adds one of zeros, and queries that were scaled before have a factor of 1."""
            values = constant_values(call.args[1])
            nothing = neutral.index(call.op)
            return call if values is None or (values != nothing).any() else call.args[0]

        def _of_one_row(self, call: Any) -> Any:
            """A convolution of an image of one row, which can be made channels-last."""
            attrs = call.attrs
            left, right = map(int, attrs.padding)
            stride, dilation = int(attrs.strides[0]), int(attrs.dilation[0])
            image, weight = (self.builder_.emit(relax.op.expand_dims(arg, [2])) for arg in call.args)
            convolve: Any = relax.op.nn.conv2d
            convolved = convolve(
                image, weight, [1, stride], [0, left, 0, right], [1, dilation], int(attrs.groups), "NCHW", "OIHW",
                "NCHW", attrs.out_dtype or None,
            )  # fmt: skip
            return relax.op.squeeze(self.builder_.emit(convolved), [2])

        def _power(self, call: Any) -> Any:
            """A small whole power as products: libm's, called element by element, takes fifty times as long."""
            x, exponent = call.args
            values = constant_values(exponent)
            count = float(values) if values is not None and not values.ndim else 0.0
            if count not in range(2, 5) or not str(x.ty.dtype).startswith("float"):
                return call
            product = x
            for _ in range(int(count) - 1):
                product = relax.op.multiply(product, x)
            return product

        def _absorb_padding(self, call: Any) -> Any:
            """A convolution of an image padded with zeros pads by itself."""
            padded: Any = self.lookup_binding(call.args[0]) if isinstance(call.args[0], relax.Var) else None
            attrs = call.attrs
            if attrs.data_layout != "NCHW" or not _zeros_around(padded):
                return call
            top, bottom, left, right = (int(width) for width in padded.attrs.pad_width[4:])
            sides = zip(map(int, attrs.padding), (top, left, bottom, right), strict=True)
            convolve: Any = relax.op.nn.conv2d
            return convolve(
                padded.args[0], call.args[1], list(map(int, attrs.strides)), [own + more for own, more in sides],
                list(map(int, attrs.dilation)), int(attrs.groups), attrs.data_layout, attrs.kernel_layout,
                attrs.out_layout, attrs.out_dtype or None,
            )  # fmt: skip

    def _same_type(one: Any, other: Any) -> bool:
        return tvm_ffi.structural_equal(one.ty, other.ty)

    def _zeros_around(call: Any) -> bool:
        """Return whether a call pads an image's rows and columns, and nothing else, with zeros."""
        if not isinstance(call, relax.Call) or call.op != pad:
            return False
        attrs: Any = call.attrs
        widths = [int(w) for w in attrs.pad_width]
        return attrs.pad_mode == "constant" and not float(attrs.pad_value) and len(widths) == 8 and not any(widths[:4])

    @module_pass(opt_level=0, name="TchubSimplify")
    def run(mod: IRModule, _: Any) -> IRModule:
        simplifier: Any = Simplifier(mod)
        for var, func in mod.functions_items():
            if isinstance(func, relax.Function):
                simplifier.builder_.update_func(var, simplifier.visit_expr(func))
        return relax.transform.DeadCodeElimination()(simplifier.builder_.get())

    return run


_UNARY = (
    *("abs", "ceil", "cos", "erf", "exp", "floor", "log", "negative", "round", "rsqrt", "sigmoid", "sin", "sqrt"),
    *("square", "tanh", "nn.relu", "nn.silu"),
)
_SHAPING = ("reshape", "squeeze", "expand_dims", "permute_dims")
# Of these that are looked at together, and elements of a tensor that is followed through them.
_LONGEST_CHAIN, _MOST_ELEMENTS = 6, 1 << 22
_BINARY = ("add", "divide", "maximum", "minimum", "multiply", "subtract")


@cache
def elementwise_first() -> Any:
    """Return a pass that moves elementwise operators before the reshape of their input.

    There they follow the operator that computes the tensor, and become part of its kernel; a reshape alone costs
    nothing. PyTorch's linear layers reshape their output, so that activations and residual additions stand behind.
    """
    from tvm import relax
    from tvm.ir import Op

    shaping = {Op.get(f"relax.{name}") for name in _SHAPING}
    elementwise = {Op.get(f"relax.{name}") for name in (*_UNARY, *_BINARY)}

    def rewrite(builder: Any, call: Any) -> Any:
        if call.op in shaping:
            source = _reshaped(builder, call)
            return call if source is None else relax.op.reshape(source, call.ty.shape)
        if call.op not in elementwise:
            return call
        # An argument that is broadcast is no reshape of the result.
        sources = [_reshaped(builder, arg) if static_shape(arg) == static_shape(call) else None for arg in call.args]
        source = next((one for one in sources if one is not None), None)
        if source is None:
            return call
        args = []
        for arg, own in zip(call.args, sources, strict=True):
            constant = constant_values(arg)
            if own is not None and static_shape(own) == static_shape(source):
                args.append(own)
            elif constant is not None and not constant.ndim:
                args.append(arg)
            elif static_shape(arg) == static_shape(call):
                args.append(builder.emit(relax.op.reshape(arg, source.ty.shape)))
            elif _is_row(arg) and static_shape(arg)[-1] == static_shape(source)[-1] == static_shape(call)[-1]:
                row: Any = [static_shape(arg)[-1]]
                args.append(builder.emit(relax.op.reshape(arg, row)))
            else:
                return call
        return relax.op.reshape(builder.emit(relax.Call(call.op, args, call.attrs)), call.ty.shape)

    return call_pass("TchubElementwiseFirst", rewrite)


def _reshaped(builder: Any, value: Any) -> Any:
    """Return what a value has the elements of, in the same order; None for what only has its own.

    A chain of reshapes and permutations may come to that: an image to channels first, its pixels to one axis, and
    this before the channels.
    """
    chain, source, call = [], None, _bound(builder, value)
    while call is not None and len(chain) < _LONGEST_CHAIN:
        chain.append(call)
        below = call.args[0]
        if not static_shape(below) or prod(static_shape(below)) > _MOST_ELEMENTS:
            break
        if _keeps_order(static_shape(below), chain[::-1]):
            source = below
        call = _bound(builder, below)
    return source


def _bound(builder: Any, value: Any) -> Any:
    """Return the reshape or permutation that a value is, or is bound to; None for any other."""
    from tvm import relax

    call: Any = builder.lookup_binding(value) if isinstance(value, relax.Var) else value
    return call if isinstance(call, relax.Call) and operator_name(call) in _SHAPING else None


def _keeps_order(shape: tuple[int, ...], chain: Sequence[Any]) -> bool:
    """Return whether reshapes and permutations leave the elements of a tensor in their order."""
    import numpy as np

    if all(operator_name(call) != "permute_dims" for call in chain):
        return True
    order = np.arange(prod(shape)).reshape(shape)
    for call in chain:
        if operator_name(call) != "permute_dims":
            order = order.reshape(static_shape(call))
        else:
            order = order.transpose([int(axis) for axis in call.attrs.axes or reversed(range(order.ndim))])
    return bool((np.diff(order.ravel()) == 1).all())


def operator_name(call: Any) -> str:
    """Return the name of a call's operator, empty for a function's."""
    return str(getattr(call.op, "name", "")).removeprefix("relax.")


def _is_row(value: Any) -> bool:
    """Return whether a tensor has one axis, or others of extent 1 before it."""
    return bool(static_shape(value)) and prod(static_shape(value)) == static_shape(value)[-1]


def static_shape(value: Any) -> tuple[int, ...]:
    """Return a static shape; empty where it is not known, and for a scalar."""
    from tvm.tirx import IntImm

    extents = list(value.ty.shape or ())
    return tuple(map(int, extents)) if all(isinstance(extent, IntImm) for extent in extents) else ()


# LLVM compares booleans neither as integers nor as floats; integers of 8 bits it does.
_COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
_SCANS = ("cumsum", "cumprod")
# TVM has these for channels-first images alone, yet infers other layouts for them.
_CHANNELS_FIRST = ("nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose")


@cache
def legal_types() -> Any:
    """Return a pass that gives operators on booleans the types that PyTorch computes them in."""
    from tvm import relax
    from tvm.ir import Op

    comparisons = {Op.get(f"relax.{name}") for name in _COMPARISONS}
    scans = {Op.get(f"relax.{name}") for name in _SCANS}

    def rewrite(_builder: Any, call: Any) -> Any:
        if call.op in comparisons and all(_dtype(x) == "bool" for x in call.args):
            left, right = (relax.op.astype(x, "int8") for x in call.args)
            return relax.Call(call.op, [left, right])
        if call.op in scans and _dtype(call.args[0]) == "bool":
            scan: Any = getattr(relax.op, call.op.name.removeprefix("relax."))
            axis, exclusive = call.attrs.axis, bool(call.attrs.exclusive)
            dtype = str(call.attrs.dtype or "int64")
            return scan(relax.op.astype(call.args[0], dtype), axis, dtype, exclusive)
        return call

    return call_pass("TchubLegalTypes", rewrite)


@cache
def channels_first_only() -> Any:
    """Return a pass that lowers operators which TVM has for channels-first images alone, before layouts are chosen."""
    from tvm.ir import Op

    names = {f"relax.{name}": Op.get(f"relax.{name}") for name in _CHANNELS_FIRST}

    def rewrite(builder: Any, call: Any) -> Any:
        if getattr(call.op, "name", None) in names and isinstance(call.op, Op):
            return call.op.get_attr("FLegalize")(builder, call)
        return call

    return call_pass("TchubChannelsFirstOnly", rewrite)


def constant_values(value: Any) -> np.ndarray | None:
    """Return the values of a constant; None for what is computed."""
    from tvm.ir.expr import GenericConst

    data: Any = value.value if isinstance(value, GenericConst) else None  # pyright: ignore[reportAttributeAccessIssue]
    return data.numpy() if hasattr(data, "numpy") else None


def _dtype(value: Any) -> str:
    return str(getattr(value.ty, "dtype", ""))


def call_pass(name: str, rewrite: Any) -> Any:
    """Return a module pass that replaces every call of a Relax function by `rewrite(builder, call)`."""
    from tvm import relax
    from tvm.ir.transform import module_pass
    from tvm.relax.expr_functor import PyExprMutator, mutator

    @mutator
    class Rewriter(PyExprMutator):
        def visit_call_(self, call: Any) -> Any:
            return rewrite(self.builder_, super().visit_call_(call))

    @module_pass(opt_level=0, name=name)
    def run(mod: IRModule, _: Any) -> IRModule:
        rewriter: Any = Rewriter(mod)
        for var, func in mod.functions_items():
            if isinstance(func, relax.Function):
                rewriter.builder_.update_func(var, rewriter.visit_expr(func))
        return rewriter.builder_.get()

    return run
