"""Constants of an exported program, and of an export: positions, masks and tables are computed once, by PyTorch itself.

TVM folds operators of constants too, but neither creation operators (`arange`) nor what follows from them.
"""

import operator
from collections.abc import Container, Iterator
from contextlib import contextmanager
from math import inf, prod
from typing import Any

import torch
from torch._functorch import config as functorch_config
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensor, FakeTensorMode
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves

from .converters import translated

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


def fix_sizes(exported: Any) -> Any:
    """Return a program in which a tensor has a fixed size where constants decide it.

    PyTorch leaves the size of `edges[:, mask]` open, of buffers too. A program without open sizes is returned as it is;
    those that an input decides stay open.
    """
    if not any(_is_open(node) for node in exported.graph.nodes):
        return exported
    exported = exported.run_decompositions({})
    values = _known_values(exported)
    _number_masks(exported.graph_module.graph, set(values))
    most = max(MOST_BYTES, sum(x.nbytes for x in values.values()))
    return _fold(exported, values, set(), most).run_decompositions({})


def _number_masks(graph: Any, constants: set[Any]) -> None:
    """Index by the numbers of the elements that constant masks choose: of an input, too, these are as many each time.

    Args:
        constants: nodes of known values, which those that follow from them are added to.
    """
    aten = torch.ops.aten
    for node in list(graph.nodes):
        if node.op == "call_function" and _is_constant(node, constants):
            constants.add(node)
        elif node.target is aten.index.Tensor and _is_open(node):
            indices: list[Any] = []
            for index in node.args[1]:
                if index is None or index not in constants or not _is_mask(index.meta["val"]):
                    indices.append(index)
                    continue
                mask, sizes = index.meta["val"], index.meta["val"].fake_mode.shape_env
                with graph.inserting_before(node), mask.fake_mode, sizes.ignore_fresh_unbacked_symbols():
                    numbers = graph.call_function(aten.nonzero.default, (index,))
                    numbers.meta["val"] = mask.nonzero()
                    for axis in range(mask.dim()):
                        indices.append(graph.call_function(aten.select.int, (numbers, 1, axis)))
                        indices[-1].meta["val"] = numbers.meta["val"].select(1, axis)
            node.args = node.args[0], indices


def _is_open(node: Any) -> bool:
    """Return whether a node gives a tensor, or several, of a size that only its values tell."""
    return any(isinstance(x, torch.Tensor) and _has_open_size(x) for x in tree_leaves(node.meta.get("val")))


def _has_open_size(x: torch.Tensor) -> bool:
    return not all(isinstance(extent, int) for extent in x.shape)


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
        if all(user in folded for user in node.users):
            continue
        if isinstance(values[node], torch.Tensor):
            _replace(exported, node, values[node])
        elif isinstance(values[node], int | float):
            node.replace_all_uses_with(values[node])
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
    arguments, named = map_arg((node.args, node.kwargs), lambda argument: values[argument])
    size, known = _bytes_of(described), _bytes_of([values[source] for source in node.all_input_nodes])
    if _is_open(node):
        size = _open_bytes(node, arguments, named, most)
    if size > most and node.target is not operator.getitem and (size > known or not _is_view(node)):
        return None
    return node.target(*arguments, **named)


def _bytes_of(value: Any) -> int:
    return sum(x.nbytes for x in tree_leaves(value) if isinstance(x, torch.Tensor) and not _has_open_size(x))


def _open_bytes(node: Any, arguments: Any, named: Any, most: int) -> float:
    """Return how many bytes an operator of constants takes, at most, whose size the program leaves open.

    A file may ask for any number: operators whose size is not known before they are computed take infinitely many.
    """
    x, *rest = tree_leaves(arguments)
    match node.target.overloadpacket.__name__ if isinstance(node.target, torch._ops.OpOverload) else "":
        case "nonzero":
            return float(x.count_nonzero()) * x.dim() * 8
        case "unique_consecutive" | "_unique2" | "unique_dim" | "_unique":
            return x.nbytes + 24.0 * x.numel()
        case "bincount":
            longest = max([float(x.max()) if x.numel() else 0.0, *(one for one in rest if isinstance(one, int))])
            return 8 * (longest + 1)
        case "masked_select":
            return float(prod(torch.broadcast_shapes(x.shape, rest[0].shape))) * x.element_size()
        case "repeat_interleave":
            repeats = next((one for one in rest if isinstance(one, torch.Tensor)), x)
            each = 8.0 if repeats is x else x.nbytes / max(1, repeats.numel())
            negative = bool((repeats < 0).any())
            return inf if negative else each * float(repeats.double().sum())
        case "index":
            if sum(8.0 * one.numel() * one.dim() for one in arguments[1] if one is not None) > most:
                return inf
            places = [one.nonzero(as_tuple=True) if _is_mask(one) else (one,) for one in arguments[1]]
            arguments = [x, [one for several in places for one in several]]
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            return float(_bytes_of(node.target(*arguments, **named)))
    except DynamicOutputShapeException:
        return inf


def _is_mask(index: Any) -> bool:
    return index is not None and index.dtype in (torch.bool, torch.uint8)


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
    described = node.meta["val"]
    constant.meta = {"val": described.fake_mode.from_tensor(value, static_shapes=True) if _is_open(node) else described}
    spec = InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(name=constant.name), name)
    signature.input_specs.insert(first_user, spec)
    exported.constants[name] = value.detach().clone(memory_format=torch.contiguous_format)  # and not a view
    node.replace_all_uses_with(constant)


# Constants in an export

NUMBERS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default)
# Operators whose result follows from the shape and the type of a tensor.
_LIKE = [getattr(torch.ops.aten, name).default for name in ("zeros_like", "ones_like", "full_like")] + [
    getattr(torch.ops.aten, name).default for name in ("new_zeros", "new_ones", "new_full")
]


def depends_on_values(error: Exception) -> bool:
    """Return whether PyTorch's export failed where it needs a number that a tensor holds."""
    kinds = ("GuardOnDataDependentSymNode", "UserError", "DataDependentOutputException")
    # An array of NumPy, too, holds numbers.
    reasons = "data-dependent", ".numpy() is not supported", "but got FakeTensor"
    return any(reason in str(error) for reason in reasons) or type(error).__name__ in kinds


@contextmanager
def known_constants(module: torch.nn.Module) -> Iterator[None]:
    """Inside, an export reads the numbers of tensors that depend on no input: of buffers, or a mask of its own making.

    PyTorch's export computes the values of weights, and of what follows from them, beside their shapes. Inputs lose
    theirs here, and so does what is random or is changed in place by an input: a branch on those is refused as before.
    """
    changed: set[int] = set()  # storages
    modes: set[Any] = set()
    mode_type: Any = FakeTensorMode
    dispatch = mode_type.dispatch

    def forget(value: Any) -> None:
        for leaf in tree_leaves(value):
            if isinstance(leaf, FakeTensor):
                leaf.real_tensor = None

    def watched(mode: Any, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        modes.add(mode)
        if op == torch.ops.prims.sum.default and args[0].dtype == torch.int32:  # gives int32, and values in int64
            with mode:
                return op(args[0].to(torch.int64), *args[1:]).to(torch.int32)
        leaves = tree_leaves((args, kwargs))
        tensors = [x for x in leaves if isinstance(x, FakeTensor)]
        numbers = [x.node for x in leaves if isinstance(x, torch.SymInt | torch.SymFloat | torch.SymBool)]
        # By an input, where the export knows no value of it.
        decided = any(one.expr.free_symbols - one.shape_env.real_tensor_prop_unbacked_vals.keys() for one in numbers)
        forget([x for x in tensors if _storage(x) in changed])
        shapes = [x for x in tensors if op in _LIKE and x.real_tensor is None]
        for x in shapes:
            x.real_tensor = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)
        known = not decided and all(x.real_tensor is not None for x in tensors)
        if op in NUMBERS and known:
            value: Any = tensors[0].real_tensor
            return value.item()
        random = torch.Tag.nondeterministic_seeded in op.tags
        views = decided and any(one.alias_info is not None for one in op._schema.returns)
        if views or (op._schema.is_mutable and (random or not known)):
            changed.update(map(_storage, tensors))
        fresh = mode.shape_env.pending_fresh_unbacked_symbols if mode.shape_env is not None else []
        before = len(fresh)
        result = dispatch(mode, op, types, args, kwargs or {})
        # Of what gives another type than PyTorch expects, the shape is that of the values, without the new symbols.
        fresh[before:] = [symbol for symbol in fresh[before:] if symbol in free_unbacked_symbols(result)]
        forget(shapes)
        if random or not known:  # PyTorch's decomposition of an operator may make memory that nothing fills
            forget(result)
        return result

    hook = module.register_forward_pre_hook(lambda _, *inputs: forget(inputs), with_kwargs=True)
    try:
        mode_type.dispatch = watched
        with functorch_config.patch(
            fake_tensor_propagate_real_tensors=True, generate_fake_kernels_from_real_mismatches=True
        ):
            yield
    finally:
        hook.remove()
        mode_type.dispatch = dispatch
        for mode in modes:  # the program keeps it for decompositions, which have no numbers of inputs either
            mode.propagate_real_tensors = False


def _storage(x: FakeTensor) -> int:
    """Identify the memory of a tensor's values, which its views share; 0 where they are not known."""
    return 0 if x.real_tensor is None else x.real_tensor.untyped_storage()._cdata
