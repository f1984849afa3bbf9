"""Networks from exported programs: `.pt2` files, and what tchub exports itself."""

import inspect
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.fx.node import map_aggregate
from torch.utils import _pytree as pytree

from ....zoo.errors import last_line
from ..errors import NetworkImportError
from ..weights import weights_on_disk
from .constants import depends_on_values, fix_sizes, known_constants
from .decompose import drop_checks, graph_modules, nodes_of
from .export_modes import export_mode
from .exported_archive import check_archive
from .network import Network, at_sizes, check_memory, is_users, refused
from .replacements import quantised
from .shapes import Shapes, example_leaves, export_again, fixed_program, free_sizes, nested_inputs


def load_exported(path: Path) -> Any:
    """Load a `.pt2` file that holds a graph and plain tensors.

    Raises:
        NetworkImportError: it holds something else, see `check_archive`.
    """
    from torch.export.pt2_archive._package import load_pt2  # torch.export.load falls back to a pickled format

    check_archive(path)
    exported = load_pt2(str(path)).exported_programs["model"]
    exported._guards_code = []  # Python source that `module()` would run
    return exported


def from_exported(exported: Any, name: str, shapes: Shapes | None = None) -> Network:
    """Return the network of an exported program, with a variant for each choice of sizes of its dynamic shapes.

    Args:
        exported: a `torch.export.ExportedProgram`. Half-precision programs are computed in float32.
        shapes: sizes of its dynamic shapes, e.g. `{"batch": [1, 8]}`.

    Raises:
        NetworkImportError: sizes are missing or wrong, or the program does not run at them.
    """
    free = free_sizes(exported)

    def make(label: str, sizes: dict[str, int]) -> Network:
        with refused(label, "import", lambda operator: ""):
            called = fix_sizes(_without_loops(fixed_program(exported, sizes, name) if free else exported, label))
        half = half_types(called)
        computed = weights_on_disk(in_precision(called, label, torch.float32)) if half else called
        tensors = tuple(leaf for leaf in example_leaves(computed) if isinstance(leaf, torch.Tensor))
        notes = precision_notes(half, is_quantised(called))
        return Network(label, lambda: computed, lambda: tensors, caller=lambda: called, notes=notes)

    return at_sizes(name, free, shapes, make)


def from_torch(
    module: Any,
    example_inputs: Sequence[Any] | torch.Tensor | None,
    example_kwargs: Mapping[str, Any] | None = None,
    name: str | None = None,
    shapes: Shapes | None = None,
) -> Network:
    """Export a module as it computes in inference mode, and return its network; the module itself stays as it is.

    Args:
        module: a `torch.nn.Module` on the CPU; or a `torch.export.ExportedProgram`, which is taken as it is.
        example_inputs: its positional arguments, or the only one; None where all have names.
        name: how reports call it; None for the name of its class.

    Raises:
        NetworkImportError: it is no module; there are no example inputs; the module is on another device, or PyTorch
            cannot export it.
    """
    if isinstance(module, torch.export.ExportedProgram):
        return from_exported(module, name or "network", shapes)
    if not isinstance(module, torch.nn.Module):
        raise NetworkImportError(
            f"{type(module).__name__} is nothing that can be tuned",
            remedy="give a torch.nn.Module with example inputs, an exported program, a name or a file",
        )
    module = getattr(module, "_orig_mod", module)  # of torch.compile
    name = name or type(module).__name__
    if example_inputs is None and example_kwargs is None:
        raise NetworkImportError(
            f"the module {name} needs example inputs, from which its shapes are taken",
            remedy="give them as torch.export takes them, e.g. hub.tune(module, (x,)), or example_kwargs={'x': x}",
            network=name,
        )
    args = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else tuple(example_inputs or ())
    # A tensor that is given twice would make two inputs one: PyTorch may read either for both.
    args, kwargs = pytree.tree_map_only(torch.Tensor, lambda x: x.detach().clone(), (args, dict(example_kwargs or {})))
    given = [x for x in pytree.tree_leaves((args, kwargs)) if torch.is_tensor(x)]
    if layouts := {str(x.layout) for x in given} - {"torch.strided"}:
        raise NetworkImportError(
            f"the module {name} takes a tensor of layout {layouts.pop()}, and TVM's are dense",
            remedy="give x.to_dense(), or hold the tensor in the module if it is always the same",
            network=name,
        )
    tensors = [*module.parameters(), *module.buffers(), *given]
    check_memory(name, sum(tensor.numel() for tensor in tensors))
    if elsewhere := {str(tensor.device) for tensor in tensors} - {"cpu"}:
        raise NetworkImportError(
            f"the module {name} or its inputs are on {', '.join(sorted(elsewhere))}",
            remedy="move them to the CPU, for which the network is tuned: module.cpu(), x.cpu()",
            network=name,
        )
    training = [part for part in module.modules() if part.training]
    try:
        exported = export_module(module.eval(), args, kwargs, name)
    finally:
        for part in training:
            part.training = True
    return from_exported(exported, name, shapes)


def export_module(module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], network: str) -> Any:
    """Export a PyTorch module for inference.

    Raises:
        NetworkImportError: PyTorch cannot export it; the error names the line of the module's code.
    """

    def export() -> Any:
        with export_mode():
            return torch.export.export(module, tuple(args), dict(kwargs))

    try:
        try:
            return export()
        except Exception as error:
            if not depends_on_values(error):
                raise
            try:
                module = _with_hooks(module)
                with known_constants(module):  # computes them, which takes time and memory
                    exported = export()
                drop_checks(exported)  # of numbers that were read, which decompositions could not
                for part in graph_modules(exported.graph_module):
                    part.recompile()
                return exported.run_decompositions({})  # without numbers, so that sizes are open which constants decide
            except Exception:
                raise error from None
    except Exception as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if is_users(f.filename)]
        location = "".join(f"{Path(f.filename).name}:{f.lineno} in {f.name}: {f.line}" for f in frames[-1:])
        first = (str(error).strip() or last_line(error)).splitlines()[0]  # hints and frames follow
        remedy = "run torch.export.export(module, inputs) yourself until it passes, or leave the part out"
        if depends_on_values(error):
            remedy = (
                "replace control flow that depends on values of tensors by torch.where or torch.cond, a loop by one of "
                "a fixed number of steps, or hold an input that is always the same, as lengths are, in the module: "
                "register_buffer"
            )
            if getattr(getattr(module, "config", None), "_experts_implementation", None) == "eager":
                remedy = 'let it compute experts without a loop: model.set_experts_implementation("grouped_mm")'
        elif "not a known type" in first:
            first = first.partition(". ")[0]
            remedy = "take and return tuples or dicts, or make the class known: torch.export.register_dataclass(CLASS)"
            if "transformers.cache_utils" in first:
                remedy = "let it return no keys and values: model.config.get_text_config().use_cache = False"
        raise NetworkImportError(
            f"PyTorch cannot export {network}: {first[:300].rstrip('.')}" + (f" ({location})" if location else ""),
            remedy=remedy,
            network=network,
            location=location,
        ) from error


def _with_hooks(module: torch.nn.Module) -> torch.nn.Module:
    """Return a module whose hooks run in an export: PyTorch runs the nodes of a graph module without them."""
    if not isinstance(module, torch.fx.GraphModule):
        return module

    def forward(*args: Any, **kwargs: Any) -> Any:
        return module(*args, **kwargs)

    outer: Any = torch.nn.Module()
    forward.__signature__ = inspect.signature(module.forward)  # pyright: ignore[reportFunctionMemberAccess]
    outer.graph, outer.forward = module, forward
    return outer


# Half precision: TVM on CPUs has no arithmetic for it, so such a network is computed in float32.


def half_types(exported: Any) -> list[str]:
    """Return the half-precision types in which a program holds or computes something, e.g. `["bfloat16"]`."""
    described = [x for node in nodes_of(exported.graph_module) for x in pytree.tree_leaves(node.meta.get("val"))]
    dtypes = {x.dtype for x in described if isinstance(x, torch.Tensor)}
    return [str(t).removeprefix("torch.") for t in (torch.bfloat16, torch.float16) if t in dtypes]


def is_quantised(exported: Any) -> bool:
    """Return whether a program has PyTorch's quantised operators."""
    return any(getattr(node.target, "namespace", "") == "quantized_decomposed" for node in exported.graph.nodes)


def in_precision(exported: Any, network: str, wide: Any) -> Any:
    """Export a program of fixed shapes again with `wide` (float32 or float64) in place of all narrower floats.

    Raises:
        NetworkImportError: PyTorch cannot run it so.
    """
    if is_quantised(exported):
        exported = exported.run_decompositions(quantised())  # PyTorch has them for float32 alone
    narrow = {torch.float16, torch.bfloat16, torch.float32} - {wide}
    shared: dict[int, Any] = {}  # tied weights stay one tensor

    def widened(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.detach().to(wide) if value.dtype in narrow else value.detach()  # the user keeps theirs
        return wide if isinstance(value, torch.dtype) and value in narrow else value

    module = exported.module(check_guards=False)
    for part in module.modules():
        for held in (part._parameters, part._buffers, vars(part)):
            for name, value in list(held.items()):
                if isinstance(value, torch.Tensor):
                    new = shared.setdefault(id(value), widened(value))
                    held[name] = torch.nn.Parameter(new, False) if held is part._parameters else new
    for part in graph_modules(module):
        for node in part.graph.nodes:
            node.args = map_aggregate(node.args, widened)
            node.kwargs = map_aggregate(node.kwargs, widened)
        part.recompile()
    return export_again(
        module,
        nested_inputs(exported, pytree.tree_map(widened, example_leaves(exported))),
        f"{network} cannot be computed in {str(wide).removeprefix('torch.')}",
        "export it in float32: torch.export.export(module.float(), ...)",
    )


def precision_notes(half: list[str], quantised: bool = False) -> tuple[str, ...]:
    """Return the notes for the user about half precision, and about quantised operators."""
    notes = [f"imported in float32: TVM has no native {' and '.join(half)} arithmetic on CPUs"] * bool(half)
    rounded = (
        "quantised products add up whole numbers: of 8 bits on CPUs with AMX, VNNI or SDOT, in float32 on other devices"
    )
    return (*notes, *[rounded] * quantised)


# PyTorch's `while_loop`, `scan` and `map` step by step: TVM's importer has none of them.

MOST_STEPS = 256
"""Of a loop: each step is as many operators as its body, which are exported and compiled one by one."""

Body = Callable[..., Any]


def _without_loops(program: Any, network: str) -> Any:
    """Export a program of fixed shapes again with its loops written out; it stays as it is where it has none.

    Raises:
        NetworkImportError: a loop runs as often as values of its inputs say.
    """
    if not any(node.target in _loops() for node in nodes_of(program.graph_module)):
        return program
    module = program.module(check_guards=False)
    for part in graph_modules(module):
        for node in part.graph.nodes:
            if node.op == "call_function":
                node.target = _loops().get(node.target, node.target)
        part.recompile()
    return export_module(module, *nested_inputs(program, example_leaves(program)), network)


def _while(condition: Body, body: Body, carried: Sequence[Any], extra: Sequence[Any]) -> tuple[Any, ...]:
    state, steps = tuple(carried), 0

    def goes_on() -> bool:
        try:
            return bool(pytree.tree_leaves(condition(*state, *extra))[0])
        except GuardOnDataDependentSymNode as error:
            raise ValueError("the end of a while_loop is data-dependent") from error

    while goes_on():
        steps += 1
        if steps > MOST_STEPS:
            raise ValueError(f"a while_loop of more than {MOST_STEPS} steps")
        state = tuple(pytree.tree_leaves(body(*state, *extra)))
    return state


def _scan(step: Body, carried: Sequence[Any], xs: Sequence[Any], extra: Sequence[Any] = ()) -> tuple[Any, ...]:
    length, state, rows = len(xs[0]), tuple(carried), []
    if length > MOST_STEPS:
        raise ValueError(f"a scan of more than {MOST_STEPS} steps")
    for i in range(length):
        results = pytree.tree_leaves(step(*state, *(x[i] for x in xs), *extra))
        state = tuple(results[: len(state)])
        rows.append(results[len(state) :])
    return *state, *(torch.stack(column) for column in zip(*rows, strict=True))


def _map(step: Body, xs: Sequence[Any], extra: Sequence[Any] = ()) -> tuple[Any, ...]:
    return _scan(step, (), xs, extra)


@cache
def _loops() -> dict[Any, Callable[..., Any]]:
    functions = {"while_loop": _while, "scan": _scan, "map_impl": _map}
    return {getattr(torch.ops.higher_order, name): function for name, function in functions.items()}
