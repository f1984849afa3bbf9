"""An imported network made ready for inference and for tuning: batch norms folded, convolutions channels-last.

What the import leaves open decides more than any schedule does. A batch norm that stands alone is a task of its own
and a pass over memory; and MetaSchedule vectorises the innermost loop, which for channels-first images of 7 or 14
columns is shorter than a vector register, while channels-last gives it the channels.

Exponentials and error functions become polynomials, as in PyTorch's own kernels: TVM calls libm for them, element by
element. They are right to the accuracy of float32 (tests/hub/test_graph.py holds them to 4e-7, relative).
"""

from __future__ import annotations

from functools import cache
from math import sqrt
from typing import TYPE_CHECKING, Any

from .errors import NetworkLoadError

if TYPE_CHECKING:
    from tvm import IRModule


LAYOUTS = ("channels-last", "as-imported")
"""Layouts of the convolutions; `as-imported` leaves the graph as it is, for Relax's `zero` pipeline alone."""


def check_layout(layout: str) -> str:
    """Raises NetworkLoadError unless `layout` is one of `LAYOUTS`."""
    if layout not in LAYOUTS:
        raise NetworkLoadError(f"{layout!r} is no layout", remedy=f"choose one of: {', '.join(LAYOUTS)}", layout=layout)
    return layout


def prepare(mod: IRModule, layout: str = "channels-last") -> IRModule:
    """Lower an imported Relax module to fused TIR functions, the tasks.

    Args:
        mod: high-level Relax, weights as constants.
        layout: see `LAYOUTS`. Inputs and outputs of the network keep the layout that they had.

    Raises:
        NetworkLoadError: no such layout.
    """
    from tvm.ir.transform import Sequential
    from tvm.target import Target

    steps = _inference_passes() if check_layout(layout) == "channels-last" else []
    # Dispatch passes ask for a target; those of CPUs lower alike for all of them.
    with Target.current(allow_none=True) or Target("llvm"):
        return Sequential([legal_types(), *steps, *_tensor_functions()])(mod)


def _tensor_functions() -> list[Any]:
    """Return the passes from Relax operators to fused TIR functions, those that Relax's own pipelines run."""
    from tvm.relax import backend, transform

    return [
        backend.DispatchSampling(),
        backend.DispatchSortScan(),
        transform.LegalizeOps(),
        transform.AnnotateTIROpPattern(),
        transform.FoldConstant(),
        transform.FuseOps(),
        transform.FuseTIR(),
        transform.AttachAttrLayoutFreeBuffers(),  # weights may be stored as a schedule likes to read them
    ]


def _inference_passes() -> list[Any]:
    from tvm.relax import transform

    return [
        transform.FoldBatchnormToConv2D(),
        transform.DecomposeOpsForInference(),  # batch norms that follow no convolution
        _simplify(),
        channels_first_only(),
        transform.CanonicalizeBindings(),
        transform.FoldConstant(),
        transform.ConvertLayout({"relax.nn.conv2d": ["NHWC", "HWIO"]}),
        transform.CanonicalizeBindings(),
        transform.FastMathTransform(),
        transform.FoldConstant(),
    ]


@cache
def _simplify() -> Any:
    """A pass that rewrites the operators at which ConvertLayout would transpose back and forth, or fail."""
    from tvm import relax
    from tvm.ir import Op
    from tvm.ir.transform import module_pass
    from tvm.relax.expr_functor import PyExprMutator, mutator

    names = ("nn.pad", "nn.conv2d", "clip", "nn.gelu", "squeeze", "power")
    pad, conv, clip, gelu, squeeze, power = (Op.get(f"relax.{name}") for name in names)

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
            if call.op == power:
                return self._multiply(call)
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

        def _multiply(self, call: Any) -> Any:
            """A small whole power as products: libm's, called element by element, takes fifty times as long."""
            x, exponent = call.args
            count = float(exponent.data.numpy()) if isinstance(exponent, relax.Constant) and not exponent.ty.ndim else 0
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

    def _zeros_around(call: Any) -> bool:
        """Return whether a call pads an image's rows and columns, and nothing else, with zeros."""
        if not isinstance(call, relax.Call) or call.op != pad:
            return False
        attrs: Any = call.attrs
        widths = [int(w) for w in attrs.pad_width]
        return attrs.pad_mode == "constant" and not float(attrs.pad_value) and len(widths) == 8 and not any(widths[:4])

    @module_pass(opt_level=0, name="TchubSimplify")
    def simplify(mod: IRModule, _: Any) -> IRModule:
        simplifier: Any = Simplifier(mod)
        for var, func in mod.functions_items():
            if isinstance(func, relax.Function):
                simplifier.builder_.update_func(var, simplifier.visit_expr(func))
        return relax.transform.DeadCodeElimination()(simplifier.builder_.get())

    return simplify


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
