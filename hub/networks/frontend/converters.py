"""Relax's side of the import: what TVM's importer does with each operator of a decomposed program, with ours besides.

TVM sorts in place of taking a maximum of some axes, multiplies into float32, scatters without reductions, and lacks
shifts by a tensor.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from tvm import IRModule, relax
from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

from ..transform import recurrence

Converter = Callable[[Any, Any], Any]


@cache
def translated() -> frozenset[str]:
    """Return the names of the PyTorch operators that can be imported."""
    return frozenset(map(str, ExportedProgramImporter().convert_map)) | frozenset(converters())


def imported(program: Any) -> IRModule:
    """Return the Relax module of a decomposed program.

    Each converter has the importer from here: TVM gives it to none inside a branch of `torch.cond`.
    """
    importer = ExportedProgramImporter()

    def bound(convert: Converter) -> Callable[[Any], Any]:
        return lambda node: convert(node, importer)

    importer.update_convert_map({name: bound(convert) for name, convert in converters().items()})
    return importer.from_exported_program(program, False, False, False, None)


def converters() -> dict[str, Converter]:
    """Return converters by the name of the operator, which are called with its node and the importer."""
    return {
        "amax.default": _reduction(relax.op.max),
        "amin.default": _reduction(relax.op.min),
        "prod.dim_int": _reduction(relax.op.prod),
        "mm.default": _product,
        "bmm.default": _product,
        "scatter_add.default": _scatter,
        "scatter_reduce.two": _scatter,
        "select.int": _select,
        "sort.default": _sort,
        "recurrence.default": recurrence.convert,
        **dict.fromkeys(("bitwise_left_shift.Tensor", "__lshift__.Tensor"), _shift(left=True)),
        **dict.fromkeys(("bitwise_right_shift.Tensor", "__rshift__.Tensor"), _shift(left=False)),
    }


def _shift(left: bool) -> Converter:
    """Shift integers by as many bits as a tensor says for each, as networks do that unpack weights of four bits.

    Of too many bits or fewer than none LLVM knows no result; PyTorch then shifts all bits out.
    """

    def convert(node: Any, importer: Any) -> Any:
        x, count = importer.retrieve_args(node)
        dtype = str(x.ty.dtype)
        zero, bits = relax.const(0, dtype), relax.const(torch.iinfo(getattr(torch, dtype)).bits, dtype)
        inside = relax.op.logical_and(relax.op.greater_equal(count, zero), relax.op.less(count, bits))
        safe = relax.op.where(inside, count, relax.op.subtract(bits, relax.const(1, dtype)))
        shifted = (relax.op.left_shift if left else relax.op.right_shift)(x, safe)
        emptied = left or dtype.startswith("u")
        return importer.block_builder.emit(relax.op.where(inside, shifted, zero) if emptied else shifted)

    return convert


def _reduction(op: Callable[..., Any]) -> Converter:
    def convert(node: Any, importer: Any) -> Any:
        given = dict(zip(("x", "dim", "keepdim"), importer.retrieve_args(node), strict=False)) | node.kwargs
        dim = given.get("dim")
        return importer.block_builder.emit(
            op(given["x"], None if dim == [] else dim, keepdims=given.get("keepdim", False))
        )

    return convert


def _product(node: Any, importer: Any) -> Any:
    """Multiply in the data type of the result: TVM gives float32 for all."""
    x, y = importer.retrieve_args(node)
    return importer.block_builder.emit(relax.op.matmul(x, y, out_dtype=str(x.ty.dtype)))


def _scatter(node: Any, importer: Any) -> Any:
    """Scatter with a reduction: `scatter_add`, or `scatter_reduce` with its name as the fifth argument."""
    x, dim, index, source = importer.retrieve_args(node)[:4]
    reduction = node.args[4] if len(node.args) > 4 else "sum"
    reductions = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min"}
    if reduction not in reductions or not node.kwargs.get("include_self", True):
        raise ValueError(f"Unsupported function types ['scatter_reduce.two' with {reduction}]")
    scattered = relax.op.scatter_elements(x, index, source, axis=dim, reduction=reductions[reduction])
    return importer.block_builder.emit(scattered)


def _select(node: Any, importer: Any) -> Any:
    """Take a row by a number, from the front or the end; one that a tensor holds is read there, in the same kernel."""
    x, dim, index = importer.retrieve_args(node)
    if isinstance(index, int):
        number = relax.const(index, "int64")
    elif str(node.args[2].target) == "aten._local_scalar_dense.default":
        scalar: Any = ()
        number = relax.op.reshape(importer.env[node.args[2].args[0]], scalar)
    else:
        number = index
    return importer.block_builder.emit(relax.op.take(x, number, dim, mode="wrap"))


def _sort(node: Any, importer: Any) -> Any:
    """Sort, and put what is no number after infinity: TVM compares it, and leaves others out of their order."""
    x, *rest = importer.retrieve_args(node)
    given = dict(zip(("dim", "descending"), rest, strict=False)) | node.kwargs
    dim, key, dtype = given.get("dim", -1), x, str(x.ty.dtype)
    if dtype.startswith("float"):
        largest = relax.op.minimum(x, relax.const(torch.finfo(getattr(torch, dtype)).max, dtype))
        key = relax.op.where(relax.op.isnan(x), relax.const(math.inf, dtype), largest)
    order = importer.block_builder.emit(relax.op.argsort(key, dim, given.get("descending", False), dtype="int64"))
    return importer.block_builder.emit(relax.Tuple([relax.op.gather_elements(x, order, axis=dim), order]))
