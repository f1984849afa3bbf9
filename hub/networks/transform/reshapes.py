"""A pass that moves elementwise operators before reshapes, into the kernel of what computes the tensor."""

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


def elementwise_first() -> Any:
    """Return a pass that moves elementwise operators before the reshape of their input.

    There they follow the operator that computes the tensor, and become part of its kernel; a reshape alone costs
    nothing. PyTorch's linear layers reshape their output, so that activations and residual additions stand behind.
    What adds to a convolution's own result stays: a reshape of that would part the two.
    """
    return function_pass("TchubElementwiseFirst", _ElementwiseFirst)


@mutator
class _ElementwiseFirst(PyExprMutator):
    def __init__(self, mod: IRModule, func: Any) -> None:
        super().__init__(mod)
        self.bound, self.uses = bound_values(func), uses_of(func)

    def visit_call_(self, call: Any) -> Any:
        stays = operator_name(call) in BINARY and any(map(self._is_convolutions, call.args))
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
            elif static_shape(arg) and prod(static_shape(arg)) == 1:
                args.append(op.reshape(arg, [1]))
            elif static_shape(arg) == static_shape(call):
                args.append(builder.emit(op.reshape(arg, source.ty.shape)))
            elif _is_row(arg) and static_shape(arg)[-1] == static_shape(source)[-1] == static_shape(call)[-1]:
                args.append(builder.emit(op.reshape(arg, [static_shape(arg)[-1]])))
            else:
                return call
        return op.reshape(builder.emit(relax.Call(call.op, args, call.attrs)), call.ty.shape)


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


def _is_row(value: Any) -> bool:
    """Return whether a tensor has one axis, or others of extent 1 before it."""
    return bool(static_shape(value)) and prod(static_shape(value)) == static_shape(value)[-1]
