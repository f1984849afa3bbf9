"""Products over a number of columns that no vector register divides are computed for a few more.

The columns of a product are its vocabulary, classes or channels: GPT-2 has 50,257, BERT 30,522, ADE20K 150. A tile
holds a divisor of them, and where that is no multiple of a register's numbers a schedule reaches a third to two thirds
of what it reaches otherwise. So columns of zeros are added to the weights when the network is compiled, and the product
is cut at once: TVM makes the cut, the bias and the activation behind it part of the product's kernel. Only a softmax
goes on with the longer rows, by whole registers, and gives the added columns nothing.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from tvm import IRModule, relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from .fused_depthwise import depthwise_sources
from .relax_graph import constant_address, constant_values, function_pass, operator_name, static_shape
from .reshapes import BINARY, UNARY

op: Any = relax.op

# Share of the columns that may be added.
_MOST_ADDED = 1 / 6
# Below these there is little to save.
_LEAST_ROWS, _LEAST_DEPTH = 16, 48


def whole_columns(columns: int, lanes: int) -> int:
    """Return the columns that a product is computed for, as many as it has where more do not pay."""
    more = -(-columns // lanes) * lanes
    return more if more <= columns * (1 + _MOST_ADDED) else columns


def pad_columns(lanes: int) -> Any:
    """Return a pass that computes products with weights over more columns where that pays; float32 alone.

    Args:
        lanes: numbers of a vector register.
    """
    return function_pass("TchubPadColumns", lambda mod, func: _Padder(mod, lanes, depthwise_sources(func)))


@mutator
class _Padder(PyExprMutator):
    """Lengthen the products of a function.

    Args:
        spared: calls of products that a depthwise convolution may take in, whose columns must be its channels.
    """

    def __init__(self, mod: IRModule, lanes: int, spared: set[Any]) -> None:
        super().__init__(mod)
        self.lanes, self.spared = lanes, spared
        self.weights: dict[Any, Any] = {}
        # By the value that has the columns of the network, what computes it with more, or gives None.
        self.longer: dict[Any, Callable[[], Any]] = {}

    def visit_call_(self, call: Any) -> Any:
        whole = call not in self.spared
        call = super().visit_call_(call)
        name, shape = operator_name(call), static_shape(call)
        if name in ("matmul", "nn.conv2d"):
            return self._product(call) if whole else call
        sources = [self.longer.get(self._alias(arg)) for arg in call.args]
        if not shape or not any(sources):
            return call
        if name in (*UNARY, *BINARY):
            return self._remembered(call, lambda: self._elementwise(call, sources))
        if name == "reshape" and static_shape(call.args[0])[-1] == shape[-1]:
            return self._remembered(call, lambda: self._reshape(call, sources[0]))
        if name == "nn.softmax" and int(call.attrs.axis) in (-1, len(shape) - 1):
            return self._softmax(call, sources[0])
        return call

    def _alias(self, value: Any) -> Any:
        """Return the first of the variables that stand for one value."""
        while isinstance(value, relax.Var) and isinstance(of := self.builder_.lookup_binding(value), relax.Var):
            value = of
        return value

    def _remembered(self, call: Any, longer: Callable[[], Any]) -> Any:
        value = self.builder_.emit(call)
        self.longer[value] = longer
        return value

    def _product(self, call: Any) -> Any:
        """Return a product, or a convolution, as the first columns of a longer one, or as it is."""
        shape, values = static_shape(call), constant_values(call.args[1])
        if values is None or len(shape) < 2 or str(call.ty.dtype) != "float32" or not _is_of_columns(call, values):
            return call
        more = whole_columns(shape[-1], self.lanes)
        if more == shape[-1] or prod(shape[:-1]) < _LEAST_ROWS or prod(values.shape[:-1]) < _LEAST_DEPTH:
            return call
        key = constant_address(call.args[1]), values.shape
        if key not in self.weights:  # which several products may share
            width = [(0, 0)] * (values.ndim - 1) + [(0, more - shape[-1])]
            self.weights[key] = relax.const(np.pad(values, width))
        whole = self.builder_.emit(relax.Call(call.op, [call.args[0], self.weights[key]], call.attrs))
        return self._remembered(_first_columns(whole, shape[-1]), lambda: whole)

    def _elementwise(self, call: Any, sources: list[Any]) -> Any:
        """Return an elementwise operator on longer rows; None where an operand has no more columns."""
        every = [source() if source else None for source in sources]
        longer = {static_shape(one)[-1] for one in every if one is not None}
        if len(longer) != 1:
            return None
        args = [
            self._lengthened(arg, static_shape(call)[-1], max(longer)) if whole is None else whole
            for arg, whole in zip(call.args, every, strict=True)
        ]
        if any(arg is None for arg in args):
            return None
        return self.builder_.emit(relax.Call(call.op, args, call.attrs))

    def _lengthened(self, arg: Any, columns: int, more: int) -> Any:
        """Return a constant with zeros in the added columns, or one number; None for another value."""
        values = constant_values(arg)
        if values is None or values.size == 1:
            return None if values is None else arg
        width = [(0, 0)] * (values.ndim - 1) + [(0, more - columns)]
        return relax.const(np.pad(values, width)) if values.shape[-1] == columns else None

    def _reshape(self, call: Any, source: Any) -> Any:
        """Return a reshape of longer rows."""
        if (whole := source()) is None:
            return None
        return self.builder_.emit(op.reshape(whole, (*static_shape(call)[:-1], static_shape(whole)[-1])))

    def _softmax(self, call: Any, source: Any) -> Any:
        """Return a softmax over longer rows, in which the added columns, whatever they hold, count nothing."""
        if (whole := source()) is None:
            return call
        columns = static_shape(call)[-1]
        counted = relax.const(np.arange(static_shape(whole)[-1]) < columns)
        nothing = relax.const(float("-inf"), "float32")
        counting = self.builder_.emit(op.where(counted, whole, nothing))
        return _first_columns(self.builder_.emit(op.nn.softmax(counting, axis=-1)), columns)


def _first_columns(value: Any, columns: int) -> Any:
    return op.strided_slice(value, [len(static_shape(value)) - 1], [0], [columns])


def _is_of_columns(call: Any, weights: np.ndarray) -> bool:
    """Return whether the last axis of some weights is the last axis of the result."""
    if operator_name(call) == "matmul":
        return weights.ndim == 2
    layouts = (call.attrs.data_layout, call.attrs.kernel_layout, call.attrs.out_layout)
    return layouts == ("NHWC", "HWIO", "NHWC") and int(call.attrs.groups) == 1
