"""Residuals of quantised networks that one kernel computes and another one adds, stored in 8 bits between them.

Where a network adds the results of two products, one product's kernel stores its result, and the other's adds it. Both
are numbers of 8 bits times a scale: as floats they take four times the memory, which is more than a core's cache holds.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from tvm import relax, te
from tvm.relax.expr_functor import PyExprMutator, mutator

from .quantised import LIMITS, as_number
from .relax_graph import bound_to, bound_values, constant_values, function_pass, operator_name, static_shape, uses_of

op: Any = relax.op

_NAME = "residual"
# What is computed element by element between a product and its codes, of which the first argument leads there.
_ELEMENTWISE = ("add", "astype", "maximum", "minimum", "multiply", "reshape", "round", "subtract")
_PRODUCTS = ("call_tir", "matmul", "nn.conv2d")


class _Codes(NamedTuple):
    """Whole numbers of a product that are rounded and cut off.

    Attributes:
        is_view: they are reshaped before they are added; position: of the product among the bindings.
        least, most: bounds.
    """

    is_view: bool
    position: int
    least: int
    most: int


def stored_codes() -> Any:
    """Return a pass that stores residuals of quantised networks in 8 bits, where kernels that add them read them."""
    return function_pass("TchubStoredCodes", _StoredCodes)


@mutator
class _StoredCodes(PyExprMutator):
    def __init__(self, mod: Any, func: Any) -> None:
        super().__init__(mod)
        self._bound, self._uses = bound_values(func), uses_of(func)
        self._positions = {var: number for number, var in enumerate(self._bound)}

    def visit_call_(self, call: Any) -> Any:
        new: Any = super().visit_call_(call)
        if operator_name(call) != "add" or str(call.ty.dtype) != "float32":
            return new
        codes = [one for arg in call.args if (one := self._codes(arg)) is not None]
        if len(codes) < 2 or len({static_shape(one) for one in (call, *call.args)}) > 1:
            return new
        # The addition becomes part of a kernel whose result it need not reshape, and of the later one of two such.
        first = min(range(2), key=lambda at: (not codes[at].is_view, codes[at].position))
        return self._sum(new.args[1 - first], new.args[first], codes[first])

    def _calls(self, value: Any, *names: str) -> Iterator[Any]:
        """Yield the call of an operator that a value is, then the one that its first argument is, and so on."""
        for name in names:
            call = self._bound.get(value)
            if not isinstance(call, relax.Call) or operator_name(call) != name or self._uses[value] != 1:
                return
            yield call
            value = call.args[0]

    def _codes(self, value: Any) -> _Codes | None:
        """Return what a value is a number times; None where it is anything else, or used elsewhere, too."""
        views = [*self._calls(value, "reshape")]
        value = views[0].args[0] if views else value
        calls = [*self._calls(value, "multiply", "minimum", "maximum", "round")]
        numbers = [constant_values(one.args[1]) for one in calls[:3]]
        if len(calls) < 4 or any(one is None or one.size != 1 for one in numbers):
            return None
        most, least = (float(one.item()) for one in numbers[1:] if one is not None)
        whole = most.is_integer() and least.is_integer()  # neither infinite nor NaN
        source = calls[-1].args[0]
        while operator_name(self._bound.get(source)) in _ELEMENTWISE:
            source = self._bound[source].args[0]
        is_product = operator_name(self._bound.get(source)) in _PRODUCTS
        if not (whole and is_product and 0 < most - least <= LIMITS["uint8"][1]):
            return None
        return _Codes(bool(views), self._positions[source], int(least), int(most))

    def _sum(self, added: Any, residual: Any, codes: _Codes) -> Any:
        """Return the sum of a value and a residual, which is stored in 8 bits."""
        builder = self.builder_
        emit = builder.emit
        view = bound_to(builder, residual, "reshape")
        scaled = bound_to(builder, residual if view is None else view.args[0], "multiply")
        rounded = bound_to(builder, bound_to(builder, scaled.args[0], "minimum").args[0], "maximum").args[0]
        fitting = (name for name, (low, high) in LIMITS.items() if low <= codes.least and codes.most <= high)
        dtype = next(fitting, "int8")
        least = min(LIMITS[dtype])
        offset = 0 if least <= codes.least and codes.most <= LIMITS[dtype][1] else codes.least - least
        if offset:
            rounded = emit(op.add(rounded, relax.const(float(-offset), "float32")))
        least, most = (relax.const(float(one - offset), "float32") for one in (codes.least, codes.most))
        stored = emit(op.astype(emit(op.minimum(emit(op.maximum(rounded, least)), most)), dtype))
        if view is not None:
            stored = emit(op.reshape(stored, view.ty.shape))
        scale: Any = constant_values(scaled.args[1])
        numbers = [as_number(scale.flat[0])] + [as_number(np.float32(offset))] * bool(offset)
        return builder.call_te(_residual_sum, added, stored, *numbers, primfunc_name_hint=_NAME)


def _residual_sum(added: Any, codes: Any, scale: Any, offset: Any = None) -> Any:
    """Return added + (codes + offset) * scale of tensors of one shape, and of numbers `[1]`."""

    def element(*i: Any) -> Any:
        code = codes(*i).astype("float32")
        return added(*i) + (code if offset is None else code + offset(0)) * scale(0)

    return te.compute(added.shape, element, name=_NAME)
