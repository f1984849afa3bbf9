"""Operators that TVM cannot compile for CPUs as they are imported, rewritten into ones that it can."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvm import IRModule

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

    return _call_pass("TchubLegalTypes", rewrite)


@cache
def channels_first_only() -> Any:
    """Return a pass that lowers operators which TVM has for channels-first images alone, before layouts are chosen."""
    from tvm.ir import Op

    names = {f"relax.{name}": Op.get(f"relax.{name}") for name in _CHANNELS_FIRST}

    def rewrite(builder: Any, call: Any) -> Any:
        if getattr(call.op, "name", None) in names and isinstance(call.op, Op):
            return call.op.get_attr("FLegalize")(builder, call)
        return call

    return _call_pass("TchubChannelsFirstOnly", rewrite)


def _dtype(value: Any) -> str:
    return str(getattr(value.ty, "dtype", ""))


def _call_pass(name: str, rewrite: Any) -> Any:
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
