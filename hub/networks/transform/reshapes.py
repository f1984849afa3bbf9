"""Operators that move no numbers, or few, in forms that become part of other kernels: reshapes and slices."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
from tvm import IRModule, relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from .relax_graph import (
    bound_to,
    bound_values,
    constant_values,
    function_pass,
    operator_name,
    static_shape,
    uses_of,
)

op: Any = relax.op

UNARY = (
    *("abs", "ceil", "cos", "erf", "exp", "floor", "log", "negative", "round", "rsqrt", "sigmoid", "sin", "sqrt"),
    *("square", "tanh", "nn.relu", "nn.silu", "nn.gelu_tanh", "nn.softplus", "astype"),
)
BINARY = ("add", "divide", "maximum", "minimum", "multiply", "subtract")
SHAPING = ("reshape", "squeeze", "expand_dims", "permute_dims")


def is_constant(value: Any, binding: Callable[[Any], Any]) -> bool:
    """Return whether a value is a constant, or a constant in another shape or order.

    Args:
        binding: returns what a variable is bound to, and another value as it is.
    """
    value = binding(value)
    while isinstance(value, relax.Call) and operator_name(value) in SHAPING:
        value = binding(value.args[0])
    return constant_values(value) is not None


# Of these that are looked at together, and elements of a tensor that is followed through them.
_LONGEST_CHAIN, _MOST_ELEMENTS = 6, 1 << 22
_LEAST_BROADCAST = 8  # times that each number of a copy is read


def elementwise_first() -> Any:
    """Return a pass that moves elementwise operators before the reshape of their input.

    There they follow the operator that computes the tensor, and become part of its kernel; a reshape alone costs
    nothing. PyTorch's linear layers reshape their output, so that activations and residual additions stand behind.
    What adds to a convolution's own result stays: a reshape of that would part the two. So does what a sum alone reads,
    whose kernel it becomes part of.
    """
    return function_pass("TchubElementwiseFirst", _ElementwiseFirst)


@mutator
class _ElementwiseFirst(PyExprMutator):
    def __init__(self, mod: IRModule, func: Any) -> None:
        super().__init__(mod)
        self.bound, self.uses = bound_values(func), uses_of(func)
        self.reduced = {call.args[0] for call in self.bound.values() if _is_reduction(call)}

    def visit_var_binding_(self, binding: Any) -> None:
        self.stays = binding.var in self.reduced and self.uses[binding.var] == 1
        super().visit_var_binding_(binding)

    def visit_call_(self, call: Any) -> Any:
        stays = self.stays or (operator_name(call) in BINARY and any(map(self._is_convolutions, call.args)))
        return self._moved(super().visit_call_(call), stays)

    def _is_convolutions(self, value: Any) -> bool:
        """Return whether a convolution's result, or what is elementwise of it, goes nowhere else."""
        if not isinstance(value, relax.Var) or self.uses[value] != 1:
            return False
        call = self.bound.get(value)
        while isinstance(call, relax.Call) and operator_name(call) in (*UNARY, *BINARY):
            same = (arg for arg in call.args if static_shape(arg) == static_shape(call))
            call = self.bound.get(next((arg for arg in same if isinstance(arg, relax.Var)), None))
        return isinstance(call, relax.Call) and operator_name(call) == "nn.conv2d"

    def _moved(self, call: Any, stays: bool) -> Any:
        builder = self.builder_
        if operator_name(call) in SHAPING:
            source = _reshaped(builder, call)
            return call if source is None else op.reshape(source, call.ty.shape)
        if stays or operator_name(call) not in (*UNARY, *BINARY):
            return call
        # An argument that is broadcast is no reshape of the result.
        sources = [_reshaped(builder, arg) if static_shape(arg) == static_shape(call) else None for arg in call.args]
        known = [one for one in sources if one is not None]
        if not known:
            return call
        source = next((one for one in known if _is_products(builder, one)), known[0])
        args = []
        for arg, own in zip(call.args, sources, strict=True):
            constant = constant_values(arg)
            if own is not None and static_shape(own) == static_shape(source):
                args.append(own)
            elif constant is not None and not constant.ndim:
                args.append(arg)
            elif static_shape(arg) and prod(static_shape(arg)) == 1:
                args.append(op.reshape(arg, [1]))
            elif static_shape(arg) == static_shape(call):
                args.append(builder.emit(op.reshape(arg, source.ty.shape)))
            elif (smaller := _broadcast_alike(builder, arg, static_shape(call), static_shape(source))) is not None:
                args.append(smaller)
            else:
                return call
        return op.reshape(builder.emit(relax.Call(call.op, args, call.attrs)), call.ty.shape)


def _is_products(builder: Any, value: Any) -> bool:
    """Return whether a value is a product, or elementwise of one, into whose kernel what follows it may go."""
    call = bound_to(builder, value, "matmul", *UNARY, *BINARY)
    while call is not None and operator_name(call) != "matmul":
        same = (arg for arg in call.args if static_shape(arg) == static_shape(call))
        steps = (bound_to(builder, arg, "matmul", *UNARY, *BINARY) for arg in same)
        call = next((step for step in steps if step is not None), None)
    return call is not None


def _is_reduction(value: Any) -> bool:
    return isinstance(value, relax.Call) and operator_name(value) in ("sum", "max", "min")


def _reshaped(builder: Any, value: Any) -> Any:
    """Return what a value has the elements of, in the same order; None for what only has its own.

    A chain of reshapes and permutations may come to that: an image to channels first, its pixels to one axis, and
    this before the channels.
    """
    chain, source, call = [], None, bound_to(builder, value, *SHAPING)
    while call is not None and len(chain) < _LONGEST_CHAIN:
        chain.append(call)
        below = call.args[0]
        if not static_shape(below):
            break
        if _keeps_order(static_shape(below), chain[::-1]):
            source = below
        call = bound_to(builder, below, *SHAPING)
    return source


def _keeps_order(shape: tuple[int, ...], chain: Sequence[Any]) -> bool:
    """Return whether reshapes and permutations leave the elements of a tensor in their order."""
    if all(operator_name(call) != "permute_dims" for call in chain):
        return True
    if prod(shape) > _MOST_ELEMENTS:
        return False
    order = np.arange(prod(shape)).reshape(shape)
    for call in chain:
        if operator_name(call) != "permute_dims":
            order = order.reshape(static_shape(call))
        else:
            order = order.transpose([int(axis) for axis in call.attrs.axes or reversed(range(order.ndim))])
    return bool((np.diff(order.ravel()) == 1).all())


def _broadcast_alike(builder: Any, arg: Any, shape: Sequence[int], source: Sequence[int]) -> Any:
    """Return what is broadcast to a tensor as an argument is to its reshape; None where that takes a larger copy.

    Both have the same last axes. A mask of attention has one head for all, and one query, or the batch's first axis
    is 1: the product that it is added to has batch and heads as one axis.
    """
    own, same = static_shape(arg), 0
    while same < min(len(shape), len(source)) and shape[-1 - same] == source[-1 - same]:
        same += 1
    if not own or not same:
        return None
    own = (1,) * (len(shape) - len(own)) + own
    heads, tail = own[:-same], own[-same:]
    if prod(heads) == 1:
        axes = next((len(tail) - axis for axis, extent in enumerate(tail) if extent > 1), 1)
        return builder.emit(op.reshape(arg, tail[-axes:]))  # a row keeps its one axis
    if heads != tuple(shape[:-same]):
        if prod(tail) * _LEAST_BROADCAST > prod(shape[-same:]):
            return None
        arg = builder.emit(op.broadcast_to(builder.emit(op.reshape(arg, own)), [*shape[:-same], *tail]))
    return builder.emit(op.reshape(arg, [*source[:-same], *tail]))


# Slices: rules of `simplify`. TVM has a kernel of its own for an operator of several results, and for a gather even if
# its indices are known. Each part of a tensor is then copied, and copied again by what permutes or scales it: query,
# key and value of attention are parts of one product, and so are the halves of a gated layer.


def split(builder: Any, call: Any) -> Any:
    """Return the parts of a tensor as slices."""
    x, axis, shape = call.args[0], int(call.attrs.axis), static_shape(call.args[0])
    extents = [int(part.shape[axis]) for part in call.ty.fields] if shape else []
    if not extents or not all(extents):
        return call
    axis, ends = axis % len(shape), np.cumsum(extents).tolist()
    slices = [_slice(builder, x, [axis], [begin], [end], [1]) for begin, end in zip([0, *ends], ends, strict=False)]
    return relax.Tuple([builder.emit(one) for one in slices])


def take(builder: Any, call: Any) -> Any:
    """Return the rows of a tensor whose numbers are known and follow each other, such as a single one, as a slice."""
    x, numbers, axis = call.args[0], constant_values(call.args[1]), call.attrs.axis
    shape = static_shape(x)
    if numbers is None or not numbers.size or not shape or axis is None or constant_values(x) is not None:
        return call
    axis, first = int(axis) % len(shape), int(numbers.flat[0])
    consecutive = (numbers.ravel() == np.arange(first, first + numbers.size)).all()
    if not consecutive or not 0 <= first <= shape[axis] - numbers.size:
        return call
    rows = _slice(builder, x, [axis], [first], [first + numbers.size], [1])
    if numbers.ndim == 1:
        return rows
    rows = builder.emit(rows)
    return op.reshape(rows, call.ty.shape) if numbers.ndim or len(shape) == 1 else op.squeeze(rows, [axis])


def strided_slice(builder: Any, call: Any) -> Any:
    """Return a slice of a permuted tensor as one of the tensor itself, which is permuted then."""
    x, *ranges = call.args
    if not static_shape(x) or len(ranges) != 4 or not all(isinstance(one, relax.Tuple) for one in ranges):
        return call
    return _slice(builder, x, *([int(number.value) for number in one.fields] for one in ranges))


def _slice(
    builder: Any, x: Any, axes: Sequence[int], begin: Sequence[int], end: Sequence[int], strides: Sequence[int]
) -> Any:
    """Return a slice of a tensor, before what permutes the tensor or drops axes of it, and is done again behind it."""
    moved = bound_to(builder, x, "permute_dims", "squeeze")
    if moved is None or constant_values(moved.args[0]) is not None:
        return op.strided_slice(x, axes, begin, end, strides)
    source = moved.args[0]
    axes_of_source = [int(axis) % source.ty.ndim for axis in _axes_in_order(moved)]
    own = _slice(builder, source, [axes_of_source[axis] for axis in axes], begin, end, strides)
    return relax.Call(moved.op, [builder.emit(own)], moved.attrs)


def _axes_in_order(call: Any) -> list[int]:
    """Return which axis of a tensor each axis is of what a call permutes it to, or leaves of it."""
    axes = range(call.args[0].ty.ndim)
    if operator_name(call) == "permute_dims":
        return [int(axis) for axis in call.attrs.axes or reversed(axes)]
    dropped = {int(axis) % len(axes) for axis in call.attrs.axis}
    return [axis for axis in axes if axis not in dropped]
