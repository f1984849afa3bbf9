"""TVM's side of the import: converters of PyTorch operators that TVM's importer lacks, or gives another data type."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

Converter = Callable[[Any, Any], Any]


@cache
def translated() -> frozenset[str]:
    """Names of the PyTorch operators that can be imported."""
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    return frozenset(map(str, ExportedProgramImporter().convert_map)) | frozenset(converters())


def converters() -> dict[str, Converter]:
    """Converters by the name of the operator, for `from_exported_program(custom_convert_map=...)`."""
    from tvm import relax

    return {
        "amax.default": _reduction(relax.op.max),
        "amin.default": _reduction(relax.op.min),
        "prod.dim_int": _reduction(relax.op.prod),
        "mm.default": _product,
        "bmm.default": _product,
        "scatter_add.default": lambda node, importer: _scatter(node, importer, "add"),
        "scatter_reduce.two": _scatter_reduce,
    }


def _reduction(op: Callable[..., Any]) -> Converter:
    def convert(node: Any, importer: Any) -> Any:
        x, dim, keepdim = _arguments(node, importer, dim=None, keepdim=False)
        return importer.block_builder.emit(op(x, dim if dim != [] else None, keepdims=keepdim))

    return convert


def _product(node: Any, importer: Any) -> Any:
    """In the data type of its result: TVM's gives float32 for all."""
    from tvm import relax

    x, y = importer.retrieve_args(node)
    return importer.block_builder.emit(relax.op.matmul(x, y, out_dtype=str(x.ty.dtype)))


def _scatter(node: Any, importer: Any, reduction: str) -> Any:
    from tvm import relax

    x, dim, index, source = importer.retrieve_args(node)[:4]
    return importer.block_builder.emit(relax.op.scatter_elements(x, index, source, axis=dim, reduction=reduction))


def _scatter_reduce(node: Any, importer: Any) -> Any:
    reductions = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min"}
    include_self = node.kwargs.get("include_self", True)
    if node.args[4] not in reductions or not include_self:
        raise ValueError(f"Unsupported function types ['scatter_reduce.two' with {node.args[4]}]")
    return _scatter(node, importer, reductions[node.args[4]])


def _arguments(node: Any, importer: Any, **defaults: Any) -> list[Any]:
    """The first argument, then those of these names, in their order."""
    args = importer.retrieve_args(node)
    rest = [node.kwargs.get(name, value) for name, value in defaults.items()]
    return [args[0], *args[1:], *rest[len(args) - 1 :]]
