"""Products over a number of columns that no vector register divides are computed for a few more.

The columns of a product are its vocabulary, classes or channels: GPT-2 has 50,257, BERT 30,522, ADE20K 150. A tile
holds a divisor of them, and where that is no multiple of a register's numbers a schedule reaches a third to two thirds
of what it reaches otherwise. So columns of zeros are added to the weights when the network is compiled, and the product
is cut at once: TVM makes the cut, the bias and the activation behind it part of the product's kernel. Only a softmax
whose rows fill no registers goes on with the longer ones, and gives the added columns nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from tvm import IRModule, relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from .attention import match_calls
from .fused_depthwise import depthwise_sources
from .relax_graph import (
    constant_address,
    constant_values,
    function_pass,
    is_channels_last,
    operator_name,
    static_shape,
)
from .reshapes import BINARY, UNARY
from .softmax import lanes_of

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

    def padder(mod: IRModule, func: Any) -> Any:
        return _Padder(mod, lanes, depthwise_sources(func), _probabilities(func))

    return function_pass("TchubPadColumns", padder)


@dataclass(frozen=True)
class _Probabilities:
    """A softmax of a product's columns, and what stands between: elementwise operators, then reshapes.

    Attributes:
        elementwise: each with the number of the argument that is computed of the product; the others are constants.
    """

    product: Any
    elementwise: tuple[tuple[Any, int], ...]
    reshapes: tuple[Any, ...]


@mutator
class _Padder(PyExprMutator):
    """Lengthen the products of a function.

    Args:
        spared: calls of products that a depthwise convolution may take in, whose columns must be its channels.
        softmaxes: by their calls.
    """

    def __init__(self, mod: IRModule, lanes: int, spared: set[Any], softmaxes: dict[Any, _Probabilities]) -> None:
        super().__init__(mod)
        self.lanes, self.spared, self.softmaxes = lanes, spared, softmaxes
        self.weights: dict[Any, Any] = {}
        self.longer: dict[Any, Any] = {}  # by the call of the product

    def visit_call_(self, call: Any) -> Any:
        visited = super().visit_call_(call)
        if call in self.softmaxes:
            return self._softmax(visited, self.softmaxes[call])
        if operator_name(call) not in ("matmul", "nn.conv2d") or call in self.spared:
            return visited
        if (whole := self._product(visited)) is None:
            return visited
        self.longer[call] = self.builder_.emit(whole)
        return _first_columns(self.longer[call], static_shape(call)[-1])

    def _product(self, call: Any) -> Any:
        """Return a product, or a convolution, with more columns; None where it stays as it is."""
        shape, weights = static_shape(call), static_shape(call.args[1])
        if not _is_of_columns(call) or prod(shape[:-1]) < _LEAST_ROWS or prod(weights[:-1]) < _LEAST_DEPTH:
            return None
        more = whole_columns(shape[-1], self.lanes)
        if more == shape[-1] or (address := constant_address(call.args[1])) is None:
            return None
        key = address, weights
        if key not in self.weights:  # which several products may share
            self.weights[key] = _lengthened(call.args[1], shape[-1], more)
        return relax.Call(call.op, [call.args[0], self.weights[key]], call.attrs)

    def _softmax(self, call: Any, one: _Probabilities) -> Any:
        """Return a softmax over longer rows, in which the added columns, whatever they hold, count nothing."""
        if (whole := self.longer.get(one.product)) is None:
            return call
        columns, more = static_shape(call)[-1], static_shape(whole)[-1]
        for step, position in one.elementwise:
            args: list[Any] = [_lengthened(arg, columns, more) for arg in step.args]
            args[position] = whole
            whole = self.builder_.emit(relax.Call(step.op, args, step.attrs))
        nothing = relax.const(float("-inf"), str(call.ty.dtype))
        whole = self.builder_.emit(op.where(relax.const(np.arange(more) < columns), whole, nothing))
        for step in one.reshapes:
            whole = self.builder_.emit(op.reshape(whole, (*static_shape(step)[:-1], more)))
        return _first_columns(self.builder_.emit(op.nn.softmax(whole, axis=-1)), columns)


def _probabilities(func: Any) -> dict[Any, _Probabilities]:
    """Return the softmaxes of a function over a product's columns that fill no registers, by their calls.

    What stands between is used by nothing else: it would be computed twice.
    """

    def match(call: Any, producer: Callable[[Any], Any]) -> _Probabilities | None:
        shape = static_shape(call)
        if not shape or int(call.attrs.axis) not in (-1, len(shape) - 1) or lanes_of(shape[-1]) is not None:
            return None
        columns = shape[-1]
        step, elementwise, reshapes = producer(call.args[0]), list[Any](), list[Any]()
        while step is not None and operator_name(step) == "reshape":
            if static_shape(step)[-1:] != static_shape(step.args[0])[-1:]:
                return None
            reshapes.insert(0, step)
            step = producer(step.args[0])
        while step is not None and operator_name(step) in (*UNARY, *BINARY):
            others = [number for number, arg in enumerate(step.args) if constant_values(arg) is None]
            known = (static_shape(arg) for number, arg in enumerate(step.args) if number not in others)
            if len(others) != 1 or not all(not shape or shape[-1] in (1, columns) for shape in known):
                return None
            elementwise.insert(0, (step, others[0]))
            step = producer(step.args[others[0]])
        if step is None or operator_name(step) not in ("matmul", "nn.conv2d") or static_shape(step)[-1:] != (columns,):
            return None
        return _Probabilities(step, tuple(elementwise), tuple(reshapes))

    return match_calls(func, "nn.softmax", match)


def _lengthened(constant: Any, columns: int, more: int) -> Any:
    """Return a constant with zeros behind its own columns; another value as it is."""
    values = constant_values(constant)
    if values is None or values.shape[-1:] != (columns,):
        return constant
    return relax.const(np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, more - columns)]))


def _first_columns(value: Any, columns: int) -> Any:
    return op.strided_slice(value, [len(static_shape(value)) - 1], [0], [columns])


def _is_of_columns(call: Any) -> bool:
    """Return whether a product is of float32, and the last axis of its weights the last axis of its result."""
    shape, weights = map(static_shape, call.args)
    if len(shape) < 2 or str(call.ty.dtype) != "float32":
        return False
    if operator_name(call) == "matmul":
        return len(weights) == 2
    return is_channels_last(call) and int(call.attrs.groups) == 1
