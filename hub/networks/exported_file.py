"""Networks from exported programs: `.pt2` files, and what tchub exports itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .blame import export_module
from .errors import NetworkImportError
from .exported_archive import check_archive
from .network import Network
from .precision import half_types, in_float32, precision_notes
from .shapes import Shapes, choices, example_leaves, fixed_program, free_sizes, label

if TYPE_CHECKING:
    import torch


def read_pt2(path: Path, shapes: Shapes | None = None) -> Network:
    """Return the network of a file of `torch.export.save`.

    Raises:
        NetworkImportError: the file is damaged, of another version of PyTorch, or would run code; or it has dynamic
            shapes, and no sizes are given.
    """
    return from_exported(load_exported(path), path.stem, "pt2", shapes)


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


def from_exported(exported: Any, name: str, origin: str = "pt2", shapes: Shapes | None = None) -> Network:
    """Return the network of an exported program, with a variant for each choice of sizes of its dynamic shapes.

    Args:
        exported: a `torch.export.ExportedProgram`. Half-precision programs are computed in float32.
        name: how reports call it.
        origin: see `Network`.
        shapes: sizes of its dynamic shapes, e.g. `{"batch": [1, 8]}`.

    Raises:
        NetworkImportError: sizes are missing or wrong, or the program does not run at them.
    """
    free = free_sizes(exported)
    variants = choices(name, free, shapes)
    networks = [
        _network(fixed_program(exported, sizes, name) if free else exported, label(name, sizes, free, shapes), origin)
        for sizes in variants
    ]
    first = replace(networks[0], name=name)
    return replace(first, fixed=tuple(networks)) if len(networks) > 1 else first


def from_module(
    module: torch.nn.Module,
    example_inputs: Sequence[Any] | torch.Tensor | None,
    example_kwargs: Mapping[str, Any] | None = None,
    name: str | None = None,
    shapes: Shapes | None = None,
) -> Network:
    """Export a module as it computes in inference mode, and return its network; the module itself stays as it is.

    Args:
        module: on the CPU.
        example_inputs: its positional arguments, or the only one; None where all have names.
        example_kwargs: its arguments by name.
        name: how reports call it; None for the name of its class.
        shapes: see `from_exported`.

    Raises:
        NetworkImportError: there are no example inputs, the module is on another device, or PyTorch cannot export it.
    """
    import torch
    from torch.utils._pytree import tree_leaves, tree_map_only

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
    args, kwargs = tree_map_only(torch.Tensor, lambda x: x.detach().clone(), (args, dict(example_kwargs or {})))
    tensors = [*module.parameters(), *module.buffers(), *(x for x in tree_leaves((args, kwargs)) if torch.is_tensor(x))]
    if elsewhere := {str(tensor.device) for tensor in tensors} - {"cpu"}:
        raise NetworkImportError(
            f"the module {name} or its inputs are on {', '.join(sorted(elsewhere))}",
            remedy="move them to the CPU, for which the network is tuned: module.cpu(), x.cpu()",
            network=name,
        )
    with _inference(module):
        exported = export_module(module, args, kwargs, name)
    return from_exported(exported, name, "torch", shapes)


@contextmanager
def _inference(module: torch.nn.Module) -> Iterator[None]:
    """Within, the module is in inference mode, without gradients, and without kernels that TVM does not know."""
    import torch

    training = [part for part in module.modules() if part.training]
    fast = torch.backends.mha.get_fastpath_enabled()
    try:
        module.eval()
        torch.backends.mha.set_fastpath_enabled(False)
        with torch.no_grad():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for part in training:
            part.training = True


def _network(exported: Any, name: str, origin: str) -> Network:
    half = half_types(exported)
    if not half:
        return Network(name, lambda: exported, partial(flat_inputs, exported), origin)
    computed = in_float32(exported, name)
    return Network(
        name,
        lambda: computed,
        partial(flat_inputs, computed),
        origin,
        caller=lambda: exported,
        notes=precision_notes(half),
    )


def flat_inputs(exported: Any) -> tuple[torch.Tensor, ...]:
    """Return the tensors among a program's example inputs, in the order of the compiled function's parameters."""
    import torch

    return tuple(leaf for leaf in example_leaves(exported) if isinstance(leaf, torch.Tensor))
