"""Half precision: TVM on CPUs has no arithmetic for it, so a float16 or bfloat16 network is computed in float32.

The weights keep their values, which float32 holds exactly; what lies between is more precise than the original.
"""

from __future__ import annotations

from typing import Any

from ...zoo.errors import last_line
from .errors import NetworkImportError
from .shapes import example_leaves, nested_inputs


def half_types(exported: Any) -> list[str]:
    """Return the half-precision types in which a program holds or computes something, e.g. `["bfloat16"]`."""
    import torch
    from torch.utils import _pytree as pytree

    found = set()
    for module in _graph_modules(exported.graph_module):
        for node in module.graph.nodes:
            described = pytree.tree_leaves(node.meta.get("val"))
            found |= {x.dtype for x in described if isinstance(x, torch.Tensor)}
    return [str(t).removeprefix("torch.") for t in (torch.bfloat16, torch.float16) if t in found]


def in_float32(exported: Any, network: str) -> Any:
    """Export a half-precision program again with float32 in place of float16 and bfloat16.

    Weights, buffers, constants, inputs, outputs and the types that operators are told are changed; integers, bool and
    float64 stay.

    Args:
        exported: a `torch.export.ExportedProgram` with fixed shapes; it is not changed.
        network: its name, for errors.

    Raises:
        NetworkImportError: PyTorch cannot run it so.
    """
    import torch
    from torch.fx.node import map_aggregate
    from torch.utils import _pytree as pytree

    half = (torch.float16, torch.bfloat16)

    shared: dict[int, Any] = {}  # tied weights stay one tensor

    def widened(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.detach().float() if value.dtype in half else value
        return torch.float32 if value in half else value

    module = exported.module(check_guards=False)
    for part in module.modules():
        for held in (part._parameters, part._buffers, vars(part)):
            for name, value in list(held.items()):
                if isinstance(value, torch.Tensor):
                    wide = shared.setdefault(id(value), widened(value))
                    held[name] = torch.nn.Parameter(wide, False) if held is part._parameters else wide
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
            f"{network} cannot be computed in float32: {last_line(error)}",
            remedy="export it in float32: torch.export.export(module.float(), ...)",
            network=network,
        ) from error


def _graph_modules(module: Any) -> list[Any]:
    import torch

    return [part for part in module.modules() if isinstance(part, torch.fx.GraphModule)]
