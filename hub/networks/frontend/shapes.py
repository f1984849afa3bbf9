"""Dynamic shapes: an exported program with symbolic sizes becomes one program for each choice of sizes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ....zoo.errors import last_line
from ..errors import NetworkImportError

Shapes = Mapping[str, Sequence[int]]
"""Sizes to tune at by the name of a dynamic size, `{"batch": [1, 8]}`; or the value of an ONNX file's scalar input."""

MAX_VARIANTS = 16


@dataclass(frozen=True)
class FreeSize:
    """A size that a file leaves open.

    Attributes:
        name: PyTorch's symbol (`s77`; it does not keep the name of a `Dim`), or an ONNX file's `dim_param`.
        places: (input, axis) of each tensor that has it.
        least, most: bounds, both included; None for no bound.
    """

    name: str
    places: tuple[tuple[str, int], ...]
    least: int = 1
    most: int | None = None

    def names(self) -> set[str]:
        """Return the names that it can be given by: its own, and `INPUT.AXIS`."""
        return {self.name, *(f"{name}.{axis}" for name, axis in self.places)}

    @property
    def is_batch(self) -> bool:
        """Whether it is the first axis of its tensors."""
        return all(axis == 0 for _, axis in self.places)

    def __str__(self) -> str:
        axes = {axis for _, axis in self.places}
        inputs = ", ".join(dict.fromkeys(name for name, _ in self.places))
        where = f"axis {min(axes)} of {inputs}" if len(axes) == 1 else inputs
        return f"{self.name} ({where}; {self.least} to {'any' if self.most is None else self.most})"


def choices(network: str, free: Sequence[FreeSize], shapes: Shapes | None) -> list[tuple[str, dict[str, int]]]:
    """Return every combination of the sizes that were given: a label, e.g. `bert-batch8`, and sizes by `FreeSize.name`.

    A size is given by its own name, by `INPUT.AXIS`, as `batch` with all others that are the first axis of inputs, or
    by any name where one size and one name are left.

    Raises:
        NetworkImportError: sizes are missing, belong to no free size, or lie outside its bounds.
    """
    shapes = shapes or {}
    if shapes and not free:
        raise NetworkImportError(f"{network} has fixed shapes", remedy="leave the sizes out", given=[*shapes])
    matched = _matched(free, shapes)
    given = list(dict.fromkeys(matched.values()))
    combinations = list(product(*(shapes[name] for name in given)))
    problem = ""
    if unknown := [name for name in shapes if name not in given]:
        problem = f"; there is no {', '.join(unknown)}"
    elif len(matched) == len(free):
        for size in free:
            name = matched[size.name]
            for value in shapes[name]:
                if value < size.least or (size.most is not None and value > size.most):
                    problem = f"; {name}={value} is outside of what it takes"
        if not 1 <= len(combinations) <= MAX_VARIANTS:
            problem = f"; the sizes make {len(combinations)} networks, and 1 to {MAX_VARIANTS} are tuned at once"
    if problem or len(matched) < len(free):
        has_own = any("batch" in one.names() for one in free)
        examples = dict.fromkeys(
            "batch=1,8" if one.is_batch and (one.name == "batch" or not has_own) else f"{one.name}={one.most or 128}"
            for one in free
        )
        raise NetworkImportError(
            f"{network} has dynamic shapes: {'; '.join(map(str, free))}{problem}",
            remedy=f"say for which sizes to tune it: {' '.join(f'--shape {one}' for one in examples)}",
            network=network,
            free=[size.name for size in free],
        )
    results = []
    for values in combinations:
        parts = [f"{name}{value}" for name, value in zip(given, values, strict=True)]
        sizes = {size: values[given.index(name)] for size, name in matched.items()}
        results.append(("-".join([network, *parts]), sizes))
    return results


def _matched(free: Sequence[FreeSize], shapes: Shapes) -> dict[str, str]:
    """Return the name that each free size is given by, without those that are not given."""
    matched = {size.name: name for size in free for name in shapes if name in size.names()}
    names = [name for name in shapes if name not in matched.values()]
    if "batch" in names and (batch := [size for size in free if size.is_batch and size.name not in matched]):
        matched |= {size.name: "batch" for size in batch}
        names.remove("batch")
    left = [size for size in free if size.name not in matched]
    if len(left) == len(names) == 1:
        matched[left[0].name] = names[0]
    return matched


def free_sizes(exported: Any) -> list[FreeSize]:
    """Return the symbolic sizes of an exported program's inputs, in the order in which the inputs have them."""
    places: dict[str, list[tuple[str, int]]] = {}
    for node in user_inputs(exported):
        for axis, size in enumerate(getattr(node.meta["val"], "shape", ())):
            for symbol in [] if isinstance(size, int) else sorted(map(str, size.node.expr.free_symbols)):
                places.setdefault(symbol, []).append((node.name, axis))
    bounds = {str(symbol): bound for symbol, bound in exported.range_constraints.items()}
    results = []
    for symbol, where in places.items():
        low, high = (_whole(getattr(bounds.get(symbol), side, None)) for side in ("lower", "upper"))
        results.append(FreeSize(symbol, tuple(where), max(low or 1, 1), high))
    return results


def _whole(bound: Any) -> int | None:
    """Return a bound of PyTorch's as a number; its infinities, and the int64 that stands for them, are none."""
    text = str(bound)
    return int(text) if text.isdigit() and int(text) < 1 << 40 else None


def user_inputs(exported: Any) -> list[Any]:
    """Return the graph's nodes of the program's inputs, flat, in order; constants have a node each."""
    names = [spec.arg.name for spec in exported.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]
    nodes = {node.name: node for node in exported.graph.nodes if node.op == "placeholder"}
    return [nodes[name] for name in names]


def example_leaves(exported: Any) -> list[Any]:
    """Return the example inputs that a program holds, flat and constants included.

    Raises:
        NetworkImportError: it holds none.
    """
    if exported.example_inputs is None:
        raise NetworkImportError(
            "the program holds no example inputs", remedy="save it as torch.export.export gives it"
        )
    return pytree.tree_leaves(exported.example_inputs)


def nested_inputs(exported: Any, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and named arguments of a program from its flat inputs, constants included."""
    args, kwargs = pytree.tree_unflatten(leaves, exported.call_spec.in_spec)
    return args, kwargs


def call_arguments(exported: Any, tensors: Sequence[torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and named arguments of a program from the tensors among them alone, in order."""
    given = iter(tensors)
    leaves = [next(given) if isinstance(leaf, torch.Tensor) else leaf for leaf in example_leaves(exported)]
    return nested_inputs(exported, leaves)


def fixed_program(exported: Any, sizes: Mapping[str, int], network: str) -> Any:
    """Export a program with symbolic sizes again at fixed ones, by symbol.

    Raises:
        NetworkImportError: the program does not run at these sizes.
    """
    leaves = zip(example_leaves(exported), user_inputs(exported), strict=True)
    at = ", ".join(f"{name}={size}" for name, size in sizes.items())
    return export_again(
        exported.module(check_guards=False),
        nested_inputs(exported, [_resized(leaf, node.meta["val"], sizes) for leaf, node in leaves]),
        f"{network} does not run at {at}",
        "give other sizes, or export it with fixed shapes",
    )


def export_again(module: Any, inputs: tuple[tuple[Any, ...], dict[str, Any]], problem: str, remedy: str) -> Any:
    """Export the module of an exported program with other inputs.

    Raises:
        NetworkImportError: PyTorch cannot; it says the problem.
    """
    args, kwargs = inputs
    try:
        with torch.no_grad():
            return torch.export.export(module, args, kwargs)
    except Exception as error:
        raise NetworkImportError(f"{problem}: {last_line(error)}", remedy=remedy) from error


def _resized(leaf: Any, meta: Any, sizes: Mapping[str, int]) -> Any:
    """Return an example input at the wanted sizes: its values repeated, so that indices stay within their tables."""
    shape: Any = getattr(meta, "shape", ())
    for axis, size in enumerate(shape):
        if not isinstance(size, int):
            expression = size.node.expr
            wanted = int(expression.subs({symbol: sizes[str(symbol)] for symbol in expression.free_symbols}))
            leaf = leaf.index_select(axis, torch.arange(wanted) % leaf.shape[axis])
    return leaf
