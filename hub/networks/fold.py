"""Constant folding of an exported program: positions, masks and rotary tables are computed once, by PyTorch itself.

TVM folds operators of constants too, but neither creation operators (`arange`) nor what follows from them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# A folded value takes the place of its operators in the library: an expanded mask may be far larger than its inputs.
MOST_BYTES = 16 << 20


def fold_constants(exported: Any) -> Any:
    """Replace what depends on buffers, lifted constants and nothing else by its value.

    Parameters are left to TVM, which folds the layout of weights; random operators stay as they are.

    Args:
        exported: a decomposed `torch.export.ExportedProgram` with fixed shapes; it is changed in place.

    Returns:
        `exported`.
    """
    import torch

    exported._constants = dict(exported.constants)  # shared with the program that this one was decomposed from
    values = _known_values(exported)
    graph = exported.graph_module.graph
    folded: list[torch.fx.Node] = []
    with torch.no_grad():
        for node in graph.nodes:
            if node.op == "call_function" and _is_constant(node, values):
                value = _evaluate(node, values)
                if value is not None:
                    values[node] = value
                    folded.append(node)
    inside = set(folded)
    for node in folded:
        if any(user not in inside for user in node.users) and isinstance(values[node], torch.Tensor):
            _replace(exported, node, values[node])
    graph.eliminate_dead_code()
    exported.graph_module.recompile()
    return exported


def _known_values(exported: Any) -> dict[Any, Any]:
    """Return buffers and lifted constants by their placeholder."""
    signature = exported.graph_signature
    changed = set(signature.buffers_to_mutate.values())
    values = {}
    for node in exported.graph.nodes:
        if node.op != "placeholder":
            continue
        if (buffer := signature.inputs_to_buffers.get(node.name)) is not None and buffer not in changed:
            tensor = exported.state_dict.get(buffer)
            values[node] = exported.constants.get(buffer) if tensor is None else tensor
        elif (name := signature.inputs_to_lifted_tensor_constants.get(node.name)) is not None:
            values[node] = exported.constants[name]
    return {node: value for node, value in values.items() if value is not None}


def _is_constant(node: Any, values: dict[Any, Any]) -> bool:
    import torch

    op = node.target
    if isinstance(op, torch._ops.OpOverload) and (
        op._schema.is_mutable or torch.Tag.nondeterministic_seeded in op.tags
    ):
        return False
    return all(argument in values for argument in node.all_input_nodes)


def _evaluate(node: Any, values: dict[Any, Any]) -> Any:
    """Return the value of a node, or None where it would take too much memory."""
    import torch
    from torch.fx.node import map_arg

    described = node.meta.get("val")
    tensors = described if isinstance(described, list | tuple) else [described]
    size = sum(x.numel() * x.element_size() for x in tensors if isinstance(x, torch.Tensor))
    if size > MOST_BYTES:
        return None
    arguments, named = map_arg((node.args, node.kwargs), lambda argument: values[argument])
    return node.target(*arguments, **named)


def _replace(exported: Any, node: Any, value: torch.Tensor) -> None:
    """Make a node's value a lifted constant of the program."""
    from torch.export.graph_signature import InputKind, InputSpec, TensorArgument

    graph, signature = exported.graph_module.graph, exported.graph_signature
    name = f"folded_{len(exported.constants)}"
    while name in exported.constants:
        name = f"{name}_"
    first_user = next(s for s, spec in enumerate(signature.input_specs) if spec.kind == InputKind.USER_INPUT)
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    with graph.inserting_before(placeholders[first_user]):
        constant = graph.placeholder(f"c_{name}")
    constant.meta = {"val": node.meta["val"]}
    spec = InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(name=constant.name), name)
    signature.input_specs.insert(first_user, spec)
    exported.constants[name] = value.detach().contiguous()
    node.replace_all_uses_with(constant)
