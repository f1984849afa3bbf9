"""What every pass over a Relax graph needs: to replace calls, and to read operators, shapes, constants and bindings."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import IRModule, relax
from tvm.ir.expr import GenericConst
from tvm.ir.transform import module_pass
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.relax.utils import copy_with_new_vars
from tvm.tirx import IntImm
from tvm_ffi import structural_equal, structural_hash

op: Any = relax.op

# TVM's patterns, by which it fuses: opaque operators stay alone, others take what is elementwise, as convolutions do.
OPAQUE, TAKES_ELEMENTWISE = 8, 4
READ_WEIGHTS = "tchub.weights"
"""The attribute of a function that names the arguments which are weights and have the one layout that it reads."""


def call_pass(name: str, rewrite: Callable[[Any, Any], Any]) -> Any:
    """Return a module pass that replaces every call of a Relax function by `rewrite(builder, call)`."""

    @mutator
    class Rewriter(PyExprMutator):
        def visit_call_(self, call: Any) -> Any:
            return rewrite(self.builder_, super().visit_call_(call))

    return function_pass(name, lambda mod, _: Rewriter(mod))


def function_pass(name: str, make: Callable[[IRModule, Any], Any]) -> Any:
    """Return a module pass that rewrites each Relax function by the mutator that `make(module, function)` gives."""

    @module_pass(opt_level=0, name=name)
    def run(mod: IRModule, _: Any) -> IRModule:
        for var, func in mod.functions_items():
            if isinstance(func, relax.Function):
                rewriter = make(mod, func)
                rewriter.builder_.update_func(var, rewriter.visit_expr(func))
                mod = rewriter.builder_.get()
        return mod

    return run


def kernel_pass(name: str, change: Callable[[Any], Any]) -> Any:
    """Return a module pass that replaces each tensor function by `change(function)`; None leaves one as it is."""

    @module_pass(opt_level=0, name=name)
    def run(mod: IRModule, _: Any) -> IRModule:
        mod = mod.clone()
        for var, func in mod.functions_items():
            if isinstance(func, tvm.tirx.PrimFunc) and (changed := change(func)) is not None:
                mod[var] = changed
        return mod

    return run


def operator_name(call: Any) -> str:
    """Return the name of a call's operator, empty for a function's."""
    return str(getattr(call.op, "name", "")).removeprefix("relax.")


def static_shape(value: Any) -> tuple[int, ...]:
    """Return a static shape; empty where it is not known, and for a scalar."""
    extents = list(getattr(value.ty, "shape", None) or ())
    return tuple(map(int, extents)) if all(isinstance(extent, IntImm) for extent in extents) else ()


def is_channels_last(call: Any) -> bool:
    """Return whether a convolution is of images whose channels are their last axis, by weights that end in outputs."""
    attrs = call.attrs
    return (attrs.data_layout, attrs.kernel_layout, attrs.out_layout) == ("NHWC", "HWIO", "NHWC")


def convolved(call: Any, data: Any, weights: Any, padding: Sequence[int], out_dtype: str | None) -> Any:
    """Return a convolution as a call of Relax's conv2d is one, of other factors, padded and typed otherwise."""
    attrs = call.attrs
    return op.nn.conv2d(
        data, weights, list(map(int, attrs.strides)), list(padding), list(map(int, attrs.dilation)), int(attrs.groups),
        attrs.data_layout, attrs.kernel_layout, attrs.out_layout, out_dtype,
    )  # fmt: skip


def extents_of(*extents: int) -> list[Any]:
    """Return extents of the type that Relax has them of."""
    return [IntImm("int64", extent) for extent in extents]


def constant_values(value: Any) -> np.ndarray | None:
    """Return the values of a constant; None for what is computed."""
    data: Any = value.value if isinstance(value, GenericConst) else None  # pyright: ignore[reportAttributeAccessIssue]
    return data.numpy() if hasattr(data, "numpy") else None


def constant_address(value: Any) -> int | None:
    """Return the address of a constant's numbers, None for what is computed: a weight may be several constants."""
    tensor: Any = getattr(value, "value", None) if isinstance(value, GenericConst) else None
    return tensor.data_ptr() if hasattr(tensor, "data_ptr") else None


def bound_values(func: Any) -> dict[Any, Any]:
    """Return what each variable of a Relax function is bound to."""
    return {binding.var: binding.value for block in func.body.blocks for binding in block.bindings}


def uses_of(func: Any) -> Counter[Any]:
    """Return how many values of a Relax function use each variable, the function's result among them."""
    uses = Counter(var for value in bound_values(func).values() for var in relax.analysis.free_vars(value))
    uses.update(relax.analysis.free_vars(func.body.body))
    return uses


def bound_value(builder: Any, value: Any) -> Any:
    """Return what a variable is bound to; another value is itself."""
    return builder.lookup_binding(value) if isinstance(value, relax.Var) else value


def bound_to(builder: Any, value: Any, *names: str) -> Any:
    """Return the call of one of some operators that a value is, or is bound to; None for any other."""
    call = bound_value(builder, value)
    return call if isinstance(call, relax.Call) and operator_name(call) in names else None


def joined(mods: Sequence[IRModule]) -> IRModule:
    """Return the functions of several modules in one; `main` of the second is `main_1` there, and so on.

    Tensor functions that compute the same are there once, so that they are compiled once.
    """
    result, by_hash = mods[0].clone(), dict[int, list[Any]]()
    for var, function in mods[0].functions_items():
        if isinstance(function, tvm.tirx.PrimFunc):
            by_hash.setdefault(structural_hash(_nameless(function)), []).append((_nameless(function), var))
    for number, mod in enumerate(mods[1:], 1):
        renamed: dict[Any, Any] = {}
        for var, function in mod.functions_items():
            name, plain = f"{var.name_hint}_{number}", _nameless(function)
            same = by_hash.setdefault(structural_hash(plain), []) if isinstance(plain, tvm.tirx.PrimFunc) else []
            renamed[var] = next((one for other, one in same if structural_equal(plain, other)), None)
            if renamed[var] is None:
                renamed[var] = new = relax.GlobalVar(name)
                relax.expr._update_type(new, var.ty)
                same.append((plain, new))
                if isinstance(function, tvm.tirx.PrimFunc):
                    result[new] = plain.with_attr("global_symbol", name)
        rename = _Renamer(mod, renamed)
        for var, function in mod.functions_items():
            if isinstance(function, relax.Function):
                network: Any = rename.visit_expr(copy_with_new_vars(function))
                result[renamed[var]] = network.with_attr("global_symbol", renamed[var].name_hint)
    return result


def is_network(var: Any) -> bool:
    """Return whether a module's function is a network, not one that a network calls."""
    return var.name_hint.partition("_")[0] == "main"


def _nameless(function: Any) -> Any:
    return function.without_attr("global_symbol") if "global_symbol" in (function.attrs or ()) else function


@mutator
class _Renamer(PyExprMutator):
    def __init__(self, mod: IRModule, renamed: dict[Any, Any]) -> None:
        super().__init__(mod)
        self._renamed = renamed

    def visit_global_var_(self, var: Any) -> Any:
        return self._renamed[var]
