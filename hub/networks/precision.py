"""Half precision: TVM on CPUs has no arithmetic for it, so a float16 or bfloat16 network is computed in float32.

The weights keep their values, which float32 holds exactly; what lies between is more precise than the original.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from ...zoo.errors import last_line
from .errors import NetworkImportError
from .onnx_model import graphs_of, tensors_of
from .shapes import example_leaves, nested_inputs


def half_types(exported: Any) -> list[str]:
    """Return the half-precision types in which a program holds or computes something, e.g. `["bfloat16"]`."""
    import torch
    from torch.utils import _pytree as pytree

    dtypes = set()
    for module in _graph_modules(exported.graph_module):
        for node in module.graph.nodes:
            described = pytree.tree_leaves(node.meta.get("val"))
            dtypes |= {x.dtype for x in described if isinstance(x, torch.Tensor)}
    return [str(t).removeprefix("torch.") for t in (torch.bfloat16, torch.float16) if t in dtypes]


def in_float32(exported: Any, network: str) -> Any:
    """Export a half-precision program again with float32 in place of float16 and bfloat16; see `in_precision`."""
    import torch

    return in_precision(exported, network, {torch.float16, torch.bfloat16}, torch.float32)


def in_float64(exported: Any, network: str) -> Any:
    """Export a program again with float64 in place of all narrower floats; see `in_precision`."""
    import torch

    return in_precision(exported, network, {torch.float16, torch.bfloat16, torch.float32}, torch.float64)


def in_precision(exported: Any, network: str, narrow: Set[Any], wide: Any) -> Any:
    """Export a program again with wider floats.

    Weights, buffers, constants, inputs, outputs and the types that operators are told are changed; other types stay.

    Args:
        exported: a `torch.export.ExportedProgram` with fixed shapes; it is not changed.
        network: its name, for errors.
        narrow: the types that are replaced.
        wide: the type that replaces them.

    Raises:
        NetworkImportError: PyTorch cannot run it so.
    """
    import torch
    from torch.fx.node import map_aggregate
    from torch.utils import _pytree as pytree

    shared: dict[int, Any] = {}  # tied weights stay one tensor

    def widened(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.detach().to(wide) if value.dtype in narrow else value
        return wide if isinstance(value, torch.dtype) and value in narrow else value

    module = exported.module(check_guards=False)
    for part in module.modules():
        for held in (part._parameters, part._buffers, vars(part)):
            for name, value in list(held.items()):
                if isinstance(value, torch.Tensor):
                    new = shared.setdefault(id(value), widened(value))
                    held[name] = torch.nn.Parameter(new, False) if held is part._parameters else new
    for part in _graph_modules(module):
        for node in part.graph.nodes:
            node.args = map_aggregate(node.args, widened)
            node.kwargs = map_aggregate(node.kwargs, widened)
        part.recompile()
    leaves = pytree.tree_map(widened, example_leaves(exported))
    args, kwargs = nested_inputs(exported, leaves)
    try:
        with torch.no_grad():
            return torch.export.export(module, args, kwargs)
    except Exception as error:
        raise NetworkImportError(
            f"{network} cannot be computed in {str(wide).removeprefix('torch.')}: {last_line(error)}",
            remedy="export it in float32: torch.export.export(module.float(), ...)",
            network=network,
        ) from error


def onnx_in_float32(model: Any) -> list[str]:
    """Make float32 of the float16 and bfloat16 in an ONNX model, in place.

    Returns:
        the half-precision types that it had, e.g. `["float16"]`.
    """
    from onnx import TensorProto, numpy_helper

    names = {TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: "bfloat16"}
    dtypes = set()
    for tensor in tensors_of(model):
        if tensor.data_type in names:
            dtypes.add(names[tensor.data_type])
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype("float32"), tensor.name))
    for graph in graphs_of(model):
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.name in ("to", "dtype") and attribute.i in names:
                    dtypes.add(names[attribute.i])
                    attribute.i = TensorProto.FLOAT
        for value in [v for key in ("input", "output", "value_info") for v in getattr(graph, key)]:
            kind = getattr(value, "type", None)  # a function's inputs are names
            if kind is not None and kind.tensor_type.elem_type in names:
                dtypes.add(names[kind.tensor_type.elem_type])
                kind.tensor_type.elem_type = TensorProto.FLOAT
    return sorted(dtypes)


def precision_notes(half: list[str]) -> tuple[str, ...]:
    """Return the sentence that a user is told of half precision, or none."""
    return (f"computed in float32: TVM has no native {' and '.join(half)} arithmetic on CPUs",) if half else ()


def _graph_modules(module: Any) -> list[Any]:
    import torch

    return [part for part in module.modules() if isinstance(part, torch.fx.GraphModule)]
