"""Batch norms of a network in inference mode: into the weights before them, or a factor and a term for each channel.

TVM folds one into a 2-D convolution that it follows at once. Here are the others: a bias may stand between, and the
weights may be of a linear layer, or of a convolution of any number of axes, transposed or not.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from .attention import match_calls
from .relax_graph import bound_values, constant_values, function_pass, operator_name, static_shape
from .reshapes import is_constant

op: Any = relax.op

# The axis of the weights that counts the channels of the result.
_OUTPUTS = {f"nn.conv{axes}d": 0 for axes in (1, 2, 3)} | {f"nn.conv{axes}d_transpose": 1 for axes in (1, 2, 3)}


def fold_batch_norms() -> Any:
    """Return a Relax pass that computes the batch norms of known statistics ahead, as far as that goes."""
    return function_pass("TchubFoldBatchNorms", _Folder)


@dataclass(frozen=True)
class _WeightedSum:
    """Describe the weighted sum before a batch norm.

    Attributes:
        call: a product or a convolution whose second argument is made of constants alone.
        bias: what is added to it, if anything is.
        axis: of the weights, counting the channels of the result.
    """

    call: Any
    bias: Any | None
    axis: int


@mutator
class _Folder(PyExprMutator):
    def __init__(self, mod: Any, func: Any) -> None:
        super().__init__(mod)
        bound = bound_values(func)

        def is_known(value: Any) -> bool:
            return is_constant(value, lambda one: bound.get(one, one))

        self._sums = match_calls(func, "nn.batch_norm", lambda call, producer: _weighted_sum(call, producer, is_known))

    def visit_call_(self, call: Any) -> Any:
        known = operator_name(call) == "nn.batch_norm" and not call.attrs.training and static_shape(call.args[0])
        known = known and str(call.args[0].ty.dtype) == "float32"
        parameters = [constant_values(arg) for arg in call.args[1:5]] if known else [None]
        if any(one is None for one in parameters):
            return super().visit_call_(call)
        gamma, beta, mean, variance = (np.asarray(one, float) for one in parameters)
        scale = (gamma if call.attrs.scale else 1.0) / np.sqrt(variance + call.attrs.epsilon)
        shift = (beta if call.attrs.center else 0.0) - mean * scale
        shape = [1] * len(static_shape(call.args[0]))
        shape[int(call.attrs.axis)] = -1
        factor, term = (_constant(one, shape) for one in (scale, shift))
        emit, before = self.builder_.emit, self._sums.get(call)
        if before is None:
            x = emit(op.multiply(self.visit_expr(call.args[0]), factor))
        else:
            x, weights = map(self.visit_expr, before.call.args)
            along = [1] * len(static_shape(weights))
            along[before.axis] = -1
            scaled = emit(op.multiply(weights, _constant(scale, along)))
            x = emit(relax.Call(before.call.op, [x, scaled], before.call.attrs))
            if before.bias is not None:
                bias = emit(op.multiply(self.visit_expr(before.bias), factor))
                term = emit(op.add(bias, term))
        return relax.Tuple([emit(op.add(x, term)), *map(self.visit_expr, call.args[3:5])])


def _constant(values: np.ndarray, shape: list[int]) -> Any:
    return relax.const(values.reshape(shape).astype("float32"))


def _weighted_sum(call: Any, producer: Callable[[Any], Any], is_known: Callable[[Any], bool]) -> _WeightedSum | None:
    """Return the sum that a batch norm follows and alone reads; None of anything else."""
    step, bias = producer(call.args[0]), None
    if step is not None and operator_name(step) == "add":
        bias, summed = sorted(step.args, key=is_known, reverse=True)
        step = producer(summed) if is_known(bias) else None
        if step is not None and static_shape(step) != static_shape(call.args[0]):
            return None
    if step is None or len(step.args) != 2 or not is_known(step.args[1]) or str(step.ty.dtype) != "float32":
        return None
    name, channels = operator_name(step), int(call.attrs.axis) % len(static_shape(step))
    if name == "matmul":
        is_last = channels == len(static_shape(step)) - 1 and len(static_shape(step.args[1])) == 2
        return _WeightedSum(step, bias, 1) if is_last else None
    if name not in _OUTPUTS or channels != 1 or not str(step.attrs.data_layout).startswith("NC"):
        return None
    is_whole = not _OUTPUTS[name] or int(step.attrs.groups) == 1
    return _WeightedSum(step, bias, _OUTPUTS[name]) if is_whole else None
