"""Networks from exported programs: `.pt2` files, and what tchub exports itself."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .exported_archive import check_archive
from .network import Network
from .precision import half_types, in_float32
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
    found = choices(name, free, shapes)
    networks = [
        _network(fixed_program(exported, sizes, name) if free else exported, label(name, sizes, free, shapes), origin)
        for sizes in found
    ]
    first = replace(networks[0], name=name)
    return replace(first, fixed=tuple(networks)) if len(networks) > 1 else first


def _network(exported: Any, name: str, origin: str) -> Network:
    half = half_types(exported)
    if not half:
        return Network(name, lambda: exported, partial(flat_inputs, exported), origin)
    computed = in_float32(exported, name)
    note = f"computed in float32: TVM has no native {' and '.join(half)} arithmetic on CPUs"
    return Network(
        name, lambda: computed, partial(flat_inputs, computed), origin, caller=lambda: exported, notes=(note,)
    )


def flat_inputs(exported: Any) -> tuple[torch.Tensor, ...]:
    """Return the tensors among a program's example inputs, in the order of the compiled function's parameters."""
    import torch

    return tuple(leaf for leaf in example_leaves(exported) if isinstance(leaf, torch.Tensor))
