"""Constant folding of an exported program: positions, masks and rotary tables are computed once, by PyTorch itself.

TVM folds operators of constants too, but neither creation operators (`arange`) nor what follows from them; and it
compiles each operator that it folds, so that NumPy does what it can before (`fold_arrays`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument
from torch.fx.node import map_arg
from tvm import relax
from tvm.tirx import FloatImm, IntImm

from .simplify import call_pass, constant_values, operator_name, static_shape

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
    op = node.target
    if isinstance(op, torch._ops.OpOverload) and (
        op._schema.is_mutable or torch.Tag.nondeterministic_seeded in op.tags
    ):
        return False
    return all(argument in values for argument in node.all_input_nodes)


def _evaluate(node: Any, values: dict[Any, Any]) -> Any:
    """Return the value of a node, or None where it would take too much memory."""
    described = node.meta.get("val")
    tensors = described if isinstance(described, list | tuple) else [described]
    size = sum(x.numel() * x.element_size() for x in tensors if isinstance(x, torch.Tensor))
    if size > MOST_BYTES:
        return None
    arguments, named = map_arg((node.args, node.kwargs), lambda argument: values[argument])
    return node.target(*arguments, **named)


def _replace(exported: Any, node: Any, value: torch.Tensor) -> None:
    """Make a node's value a lifted constant of the program."""
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


def fold_arrays() -> Any:
    """Return a Relax pass that computes operators of constants by NumPy: batch norms' factors, layouts of weights."""

    def value_of(builder: Any, arg: Any) -> Any:
        if isinstance(arg, IntImm | FloatImm):  # a batch norm's epsilon
            dtype: Any = arg.ty
            return np.array(arg.value, str(dtype.dtype))
        return constant_values(builder.lookup_binding(arg) if isinstance(arg, relax.Var) else arg)

    computed: dict[str, Any] = {
        **{name: getattr(np, name) for name in ("add", "divide", "multiply", "negative", "sqrt", "subtract")},
        "permute_dims": lambda call, x: np.transpose(x, [int(axis) for axis in call.attrs.axes or ()] or None),
        **dict.fromkeys(("reshape", "expand_dims", "squeeze"), lambda call, x: x.reshape(static_shape(call))),
    }

    def rewrite(builder: Any, call: Any) -> Any:
        compute = computed.get(operator_name(call))
        if compute is None or not static_shape(call):
            return call
        values = [value_of(builder, arg) for arg in call.args if not isinstance(arg, relax.ShapeExpr)]
        if any(value is None for value in values):
            return call
        value = compute(*values) if isinstance(compute, np.ufunc) else compute(call, *values)
        return relax.const(np.ascontiguousarray(value, dtype=str(call.ty.dtype)))

    return call_pass("TchubFoldArrays", rewrite)
