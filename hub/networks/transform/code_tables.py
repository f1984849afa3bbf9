"""Activations of quantised networks as tables: what is computed between two roundings to 8 bits has 256 results."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from tvm import relax, te
from tvm.relax.expr_functor import PyExprMutator, mutator

from .quantised import LIMITS, QuantisedReader
from .relax_graph import (
    bound_to,
    bound_values,
    constant_values,
    function_pass,
    kernel_pass,
    operator_name,
    static_shape,
)

op: Any = relax.op

_NAME = "code_table"
# Of a function that kernels take as they take what is elementwise, which TVM does not see of it.
_TABLE, _ELEMENTWISE = "tchub.table", 0
CODES = 256
# Those that take longer than a look in the table.
_COSTLY: Mapping[str, Any] = {
    **{"erf": torch.erf, "exp": torch.exp, "log": torch.log, "power": torch.pow},
    **{"sigmoid": torch.sigmoid, "sqrt": torch.sqrt, "tanh": torch.tanh, "nn.silu": torch.nn.functional.silu},
    **{"nn.gelu": torch.nn.functional.gelu},
    "nn.gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
}
_OPERATORS = _COSTLY | {
    **{"abs": torch.abs, "add": torch.add, "maximum": torch.maximum, "minimum": torch.minimum, "negative": torch.neg},
    **{"divide": torch.div, "multiply": torch.mul, "nn.relu": torch.relu, "round": torch.round, "subtract": torch.sub},
}


class _Source(NamedTuple):
    """The codes that a value is computed of.

    Attributes:
        codes: the variable that is bound to them; is_costly: on the way is an operator that takes long.
    """

    codes: Any
    is_costly: bool


def code_tables() -> Any:
    """Return a pass that looks up what a quantised network computes of a code alone, and rounds to a code again.

    A CPU looks up 16 codes or more at once by an instruction, see `device.code_lookups`; on others it would be slower.
    """
    return function_pass("TchubCodeTables", _CodeTables)


def elementwise_tables() -> Any:
    """Return a pass by which TVM fuses the functions that look up codes into the kernels that compute them."""

    def changed(func: Any) -> Any:
        return func.with_attr("op_pattern", _ELEMENTWISE) if func.attrs and _TABLE in func.attrs else None

    return kernel_pass("TchubElementwiseTables", changed)


@mutator
class _CodeTables(PyExprMutator):
    def __init__(self, mod: Any, func: Any) -> None:
        super().__init__(mod)
        self._bound, self._sources = bound_values(func), dict[Any, _Source]()
        self._reader, self._tables = QuantisedReader(self._bound.get), list[Any]()
        for var, call in self._bound.items():
            source = self._source(call)
            if source is None and self._bounds(call) is not None:
                source = _Source(var, False)
            if source is not None:
                self._sources[var] = source

    def visit_call_(self, call: Any) -> Any:
        new: Any = super().visit_call_(call)
        if operator_name(call) == "astype":
            return self._stored(new)
        source, bounds = self._source(call), self._bounds(call)
        if source is None or bounds is None or not source.is_costly:
            return new
        return self._looked_up(call, source.codes, *bounds)

    def _stored(self, cast: Any) -> Any:
        """Return the codes as a table has them, where a cast gives them again; another cast as it is."""
        floats = bound_to(self.builder_, cast.args[0], "astype")
        tables = [one for one in self._tables if floats is not None and one.same_as(floats.args[0])]
        return next((one for one in tables if str(one.ty.dtype) == str(cast.ty.dtype)), cast)

    def _source(self, call: Any) -> _Source | None:
        """Return the codes that a call is computed of, element by element and by numbers; None where there are none."""
        name = operator_name(call) if isinstance(call, relax.Call) else ""
        if name not in _OPERATORS or not _is_of_floats(call):
            return None
        numbers = [constant_values(arg) for arg in call.args]
        sources = [self._sources.get(arg) for arg, number in zip(call.args, numbers, strict=True) if number is None]
        known = [one for one in sources if one is not None]
        if not known or len(known) < len(sources) or any(one is not None and one.size != 1 for one in numbers):
            return None
        codes = known[0].codes
        if not all(one.codes.same_as(codes) for one in known) or static_shape(call) != static_shape(codes):
            return None
        is_quotient = name == "divide" and numbers[1] is None
        return _Source(codes, name in _COSTLY or is_quotient or any(one.is_costly for one in known))

    def _bounds(self, call: Any) -> tuple[int, int] | None:
        """Return the least and the most of what is rounded and cut off to 256 numbers; None for any other value."""
        bounds = self._reader.bounds(call)
        if bounds is None or not all(one.is_integer() for one in bounds):
            return None
        least, most = map(int, bounds)
        return (least, most) if 0 < most - least < CODES else None

    def _looked_up(self, call: Any, codes: Any, low: int, high: int) -> Any:
        """Return the codes of a call, from `low` to `high`, as floats, by the codes that it is computed of.

        These are whole numbers of any 256 that follow each other, so that their last 8 bits tell them apart.
        """
        emit = self.builder_.emit
        least, most = self._bounds(self._bound[codes]) or (0, 0)
        inputs = np.arange(least, most + 1)
        # What is no number is cut off at the least one, as kernels do.
        results = self._computed(call, {codes: torch.from_numpy(inputs).float()}).nan_to_num(low).numpy()
        fitting = (name for name, limits in LIMITS.items() if limits[0] <= low and high <= limits[1])
        dtype = next(fitting, None)
        table = np.zeros(CODES, dtype or "uint8")
        table[inputs % CODES] = results if dtype else results - low
        index = emit(op.astype(emit(op.astype(self.visit_expr(codes), "int32")), "uint8"))
        names = {"primfunc_name_hint": _NAME, "primfunc_attrs": {_TABLE: 1}}
        self._tables.append(emit(self.builder_.call_te(_look_up, index, relax.const(table), **names)))
        floats = op.astype(self._tables[-1], "float32")
        return floats if dtype else op.add(emit(floats), relax.const(float(low), "float32"))

    def _computed(self, call: Any, known: dict[Any, torch.Tensor]) -> torch.Tensor:
        """Return what a call computes of the values of some variables, and keep what it needs on the way there."""

        def value(arg: Any) -> torch.Tensor:
            if (number := constant_values(arg)) is not None:
                return torch.tensor(number.item())
            if arg not in known:
                known[arg] = self._computed(self._bound[arg], known)
            return known[arg]

        return _OPERATORS[operator_name(call)](*map(value, call.args))


def _look_up(codes: Any, table: Any) -> Any:
    return te.compute(codes.shape, lambda *i: table(codes(*i).astype("int32")), name=_NAME)


def _is_of_floats(value: Any) -> bool:
    return str(value.ty.dtype) == "float32"
