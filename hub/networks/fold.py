"""Constant folding of an exported program: positions, masks and rotary tables are computed once, by PyTorch itself.

TVM folds operators of constants too, but neither creation operators (`arange`) nor what follows from them; and it
compiles each operator that it folds, so that NumPy does what it can before (`fold_arrays`).
"""

import operator
from collections.abc import Container
from typing import Any

import numpy as np
import torch
import tvm
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument
from torch.fx.node import map_arg
from tvm import IRModule, relax
from tvm.tirx import FloatImm, IntImm

from .converters import translated
from .relax_graph import bound_value, call_pass, constant_address, constant_values, operator_name, static_shape

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
    return _fold(exported, _known_values(exported), set())


def fold_weights(exported: Any) -> Any:
    """Return a program in which weights that are computed from parameters are constants.

    Where TVM has all operators of parameters, the program is returned as it is, for TVM folds them. An orthogonal
    weight takes a matrix's exponential, say: PyTorch computes it here, before the program is decomposed; not in a
    branch of `torch.cond`.
    """
    if not _computes_weights(exported):
        return exported
    exported = exported.run_decompositions({})
    parameters = exported.graph_signature.inputs_to_parameters
    weights = {node for node in exported.graph.nodes if node.op == "placeholder" and node.name in parameters}
    values = _known_values(exported) | {node: exported.state_dict[parameters[node.name]] for node in weights}
    return _fold(exported, values, weights, max(MOST_BYTES, sum(x.nbytes for x in values.values())))


def _computes_weights(exported: Any) -> bool:
    """Return whether a program computes something of parameters alone by an operator that TVM lacks."""
    constants, weights = set(_known_values(exported)), set[Any]()
    for node in exported.graph.nodes:
        if node.name in exported.graph_signature.inputs_to_parameters:
            weights.add(node)
            constants.add(node)
        elif node.op == "call_function" and _is_constant(node, constants):
            constants.add(node)
            if not weights.isdisjoint(node.all_input_nodes):
                weights.add(node)
                if not _is_layout(node) and getattr(node.target, "__name__", "") not in translated():
                    return True
    return False


def _fold(exported: Any, values: dict[Any, Any], weights: set[Any], most: int = MOST_BYTES) -> Any:
    """Make constants of what depends on nodes of known values alone; the program is changed in place.

    Args:
        values: tensors by node, which those of further nodes are added to; None of a node that nothing needs any more.
        weights: nodes that stay as they are, and so does another layout of one.
        most: bytes of a value.
    """
    exported._constants = dict(exported.constants)  # shared with the program that this one was decomposed from
    graph = exported.graph_module.graph
    folded: dict[torch.fx.Node, None] = {}
    with torch.no_grad():
        for node in graph.nodes:
            if node.op != "call_function" or not _is_constant(node, values):
                continue
            value = _evaluate(node, values, most)
            if value is None:
                continue
            values[node] = value
            if _is_layout(node) and not weights.isdisjoint(node.all_input_nodes):
                weights.add(node)
                continue
            folded[node] = None
            for source in folded.keys() & set(node.all_input_nodes):
                if source.users.keys() <= folded.keys():
                    values[source] = None
    for node in folded:
        if any(user not in folded for user in node.users) and isinstance(values[node], torch.Tensor):
            _replace(exported, node, values[node])
    graph.eliminate_dead_code()
    _drop_unused(exported, values)
    exported.graph_module.recompile()
    return exported


def _is_layout(node: Any) -> bool:
    """Return whether a node's result holds the very elements of its input, in a layout or type of its own."""
    return _is_view(node) or node.target in (torch.ops.aten.clone.default, torch.ops.aten._to_copy.default)


def _is_view(node: Any) -> bool:
    """Return whether a node's result is memory of its input; one of several results is, too."""
    op = node.target
    return op is operator.getitem or (isinstance(op, torch._ops.OpOverload) and op.is_view)


def _drop_unused(exported: Any, values: dict[Any, Any]) -> None:
    """Take constants that nothing reads any more out of the program's inputs: of complex ones TVM has no type."""
    unused = [node for node in values if node.op == "placeholder" and not node.users]
    names = {node.name for node in unused}
    for node in unused:
        exported.graph.erase_node(node)
    specs = exported.graph_signature.input_specs
    for spec in [spec for spec in specs if getattr(spec.arg, "name", None) in names]:
        specs.remove(spec)
        exported.constants.pop(spec.target, None)


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


def _is_constant(node: Any, values: Container[Any]) -> bool:
    op = node.target
    if isinstance(op, torch._ops.OpOverload) and (
        op._schema.is_mutable or torch.Tag.nondeterministic_seeded in op.tags
    ):
        return False
    return all(argument in values for argument in node.all_input_nodes)


def _evaluate(node: Any, values: dict[Any, Any], most: int) -> Any:
    """Return the value of a node, or None where it would take more memory than `most`, in bytes.

    A view takes none, but for one that is larger than what it is a view of: as a constant it would be written out.
    """
    described = node.meta.get("val")
    tensors = described if isinstance(described, list | tuple) else [described]
    size, known = (
        sum(x.nbytes for x in several if isinstance(x, torch.Tensor))
        for several in (tensors, [values[source] for source in node.all_input_nodes])
    )
    if size > most and node.target is not operator.getitem and (size > known or not _is_view(node)):
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
    """Return a Relax pass that computes operators of constants by NumPy: batch norms' factors, layouts of weights.

    What several calls compute of the same constants, as the steps of a recurrent layer do, is computed once.
    """
    known: dict[tuple[Any, ...], tuple[Any, Any]] = {}

    def value_of(arg: Any) -> Any:
        if isinstance(arg, IntImm | FloatImm):  # a batch norm's epsilon
            dtype: Any = arg.ty
            return np.array(arg.value, str(dtype.dtype))
        return constant_values(arg)

    computed: dict[str, Any] = {
        **{name: getattr(np, name) for name in ("add", "divide", "multiply", "negative", "sqrt", "subtract")},
        "matmul": lambda call, x, y: np.matmul(x, y),  # of the state that a recurrent layer begins with
        "broadcast_to": lambda call, x: np.broadcast_to(x, static_shape(call)),
        "permute_dims": lambda call, x: np.transpose(x, [int(axis) for axis in call.attrs.axes or ()] or None),
        **dict.fromkeys(("reshape", "expand_dims", "squeeze"), lambda call, x: x.reshape(static_shape(call))),
    }

    def rewrite(builder: Any, call: Any) -> Any:
        compute = computed.get(operator_name(call))
        if compute is None or not static_shape(call):
            return call
        arguments = [bound_value(builder, arg) for arg in call.args if not isinstance(arg, relax.ShapeExpr)]
        identities = [_identity(arg) for arg in arguments]
        if None in identities:
            return call
        key = (operator_name(call), str(call.attrs), static_shape(call), *identities)
        if key not in known:
            values = [value_of(arg) for arg in arguments]
            value = compute(*values) if isinstance(compute, np.ufunc) else compute(call, *values)
            dtype = str(call.ty.dtype)  # without which TVM makes an int64 array a constant of int32
            constant = relax.const(np.ascontiguousarray(value, dtype=dtype), dtype)
            known[key] = arguments, constant  # whose addresses nothing else may have then
        return known[key][1]

    return call_pass("TchubFoldArrays", rewrite)


def _identity(argument: Any) -> Any:
    """Return what tells a constant or a number from others; None for what is computed."""
    if isinstance(argument, IntImm | FloatImm):
        return argument.value
    if (address := constant_address(argument)) is None:
        return None
    return address, static_shape(argument), str(argument.ty.dtype)  # a part of a tensor may begin where it does


def fold_operators() -> Any:
    """Return TVM's `FoldConstant`, which runs only where a call has nothing but constants.

    It legalises every operator of a network to find out.
    """

    @tvm.transform.module_pass(opt_level=0, name="TchubFoldOperators")
    def run(mod: Any, _context: Any) -> Any:
        calls = list[Any]()

        def note(expr: Any) -> None:
            if isinstance(expr, relax.Call) and all(map(_is_known, expr.args)):
                calls.append(expr)

        for function in mod.functions.values():
            if isinstance(function, relax.Function):
                relax.analysis.post_order_visit(function, note)
        return relax.transform.FoldConstant()(mod) if calls else mod

    return run


def _is_known(arg: Any) -> bool:
    """Return whether an argument of a call is known: neither a variable nor the result of another call."""
    if isinstance(arg, relax.Tuple):
        return all(map(_is_known, arg.fields))
    return not isinstance(arg, relax.Var | relax.Call | relax.TupleGetItem)


def fold_functions() -> Any:
    """Return a Relax pass that computes calls of tensor functions of constants, such as those that permute weights.

    TVM's `FoldConstant` does so too, but compiles each function by itself, which takes longer than to run it.
    """

    @tvm.transform.module_pass(opt_level=0, name="TchubFoldFunctions")
    def run(mod: Any, _context: Any) -> Any:
        functions: dict[str, Any] = {}

        def note(builder: Any, call: Any) -> Any:
            if _constant_arguments(builder, call) is not None:
                name = call.args[0].name_hint
                functions[name] = mod[call.args[0]].with_attr("global_symbol", name)
            return call

        call_pass("TchubFindFunctions", note)(mod)
        if not functions:
            return mod
        try:
            library = tvm.tirx.build(IRModule(functions), target="llvm")
        except RuntimeError:  # TVM's: `FoldConstant`, which follows, leaves alone the one function that does not build
            return mod

        known: dict[tuple[Any, ...], tuple[Any, Any]] = {}

        def rewrite(builder: Any, call: Any) -> Any:
            constants = _constant_arguments(builder, call)
            if constants is None or call.args[0].name_hint not in functions:  # constant by what was computed just now
                return call
            key = call.args[0].name_hint, *map(constant_address, constants)
            if key not in known:
                results = [tvm.runtime.empty(tuple(map(int, one.shape)), str(one.dtype)) for one in _results(call)]
                library[call.args[0].name_hint](*(one.value for one in constants), *results)
                computed: list[Any] = [relax.const(result) for result in results]
                several = isinstance(call.ty, relax.TupleType)
                known[key] = constants, relax.Tuple(computed) if several else computed[0]
            return known[key][1]

        return call_pass("TchubFoldFunctions", rewrite)(mod)

    return run


def _results(call: Any) -> list[Any]:
    """Return the types of the tensors that a call returns."""
    return list(getattr(call.ty, "fields", [call.ty]))


def _constant_arguments(builder: Any, call: Any) -> list[Any] | None:
    """Return the arguments of a tensor function's call where all are constants, else None."""
    if operator_name(call) != "call_tir" or len(call.args) != 2:  # a third argument holds symbolic sizes
        return None
    arguments = [bound_value(builder, one) for one in call.args[1]]
    return arguments if all(constant_address(one) is not None for one in arguments) else None
