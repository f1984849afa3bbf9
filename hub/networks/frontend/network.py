"""A network that can be tuned: its exported program, its Relax module, its inputs and its signature."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.fx.experimental.symbolic_shapes import has_free_unbacked_symbols
from tvm import IRModule, relax
from tvm.relax import transform

from ....zoo.errors import TchubError, last_line
from ..errors import NetworkImportError
from .constants import fold_constants, fold_weights
from .converters import imported
from .decompose import decomposed, nodes_of
from .shapes import FreeSize, Shapes, choices
from .signature import Signature, drop_constants

# tchub by where it lies: a user's own folder may be called tchub, too.
_OWN = tuple(str(Path(__file__).parents[3] / floor) + "/" for floor in ("hub", "zoo", "cards"))
_LIBRARIES = ("/torch/", "/tvm/", "/importlib/", "<", *_OWN)


@dataclass(frozen=True)
class Network:
    """A network that can be tuned.

    Attributes:
        name: how reports call it.
        export: returns the `torch.export.ExportedProgram`, the same on each call; nobody changes it.
        inputs: returns the example inputs, the same on each call.
        fixed: the network at each of the sizes that were given for its dynamic shapes; the first is this one.
        caller: makes the program as the user calls it, where `export` computes with other data types.
        notes: what the user should know about how the network is computed, a sentence each.
    """

    name: str
    export: Callable[[], Any]
    inputs: Callable[[], tuple[torch.Tensor, ...]]
    fixed: tuple[Network, ...] = ()
    caller: Callable[[], Any] | None = None
    notes: tuple[str, ...] = ()

    @property
    def variants(self) -> tuple[Network, ...]:
        """The networks of fixed shapes to tune: several where sizes were given for a dynamic shape, else itself."""
        return self.fixed or (self,)

    def signature(self, imported: IRModule | None = None) -> Signature:
        """Return how the network is called.

        Args:
            imported: what `imported` gave, where it is at hand.
        """
        return Signature.of_exported((self.caller or self.export)())

    def imported(self) -> IRModule:
        """Return the network as Relax operators, weights as constants; its function takes the inputs one by one.

        Raises:
            NetworkImportError: TVM has no translation of an operator, or the network changes its state or inputs.
        """
        return import_exported(self.export(), self.name)

    def where(self, operator: str) -> str:
        """Say where an operator of TVM's error stands in the network, or nothing; see `where_in_network`."""
        return where_in_network(self.export(), operator)


def at_sizes(
    name: str, free: Sequence[FreeSize], shapes: Shapes | None, make: Callable[[str, dict[str, int]], Network]
) -> Network:
    """Return a network made at each choice of its free sizes: the first one, with all of them as its variants.

    Raises:
        NetworkImportError: see `shapes.choices`.
    """
    variants = tuple(make(label, sizes) for label, sizes in choices(name, free, shapes))
    return replace(variants[0], name=name, fixed=variants if len(variants) > 1 else ())


_REMEDIES = {
    "_transformer_encoder_layer": "export it with strict=False",  # which leaves PyTorch's fast path out
    "a number of item()": "compute with the tensor itself, without item()",
    "data-dependent": "compute by tensors what depends on a number of item(), and pad what has its size",
}


@contextmanager
def refused(
    network: str, step: str, where: Callable[[str], str], remedies: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Turn whatever TVM raises inside into a NetworkImportError of the network, the step and `where(operator)`.

    Args:
        remedies: by the operator, where there is a better one than to do without it.
    """
    try:
        yield
    except TchubError:
        raise
    except Exception as error:
        # `aten.foo.default` of PyTorch, the name of an ONNX operator, or `R.foo` of Relax.
        pattern = r"Unsupported function types? \['?([^\]']+)|for frontend ONNX: (\w+)|\b(R\.[\w.]+)\("
        match = re.search(pattern, str(error))
        operator = match[match.lastindex or 0] if match else None
        location = where(operator) if operator else ""
        # PyTorch adds the operator that it was at, its line, and hints to the message.
        problem = str(error).strip().splitlines()[0] if "While executing" in str(error) else last_line(error)
        raise NetworkImportError(
            f"TVM cannot {step} {network}: {operator or problem}" + (f" ({location})" if location else ""),
            remedy=(remedies or {}).get(operator or "")
            or next(
                (remedy for part, remedy in _REMEDIES.items() if part in (operator or problem)),
                "write the operator with others that TVM has, or leave it out of what is tuned",
            ),
            network=network,
            operator=operator,
            location=location,
        ) from error


def import_exported(exported: Any, name: str) -> IRModule:
    """Import an exported program into Relax.

    Raises:
        NetworkImportError: TVM has no translation of an operator, or the program changes its state or its inputs.
    """
    with refused(name, "import", lambda operator: where_in_network(exported, operator)), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's own pytree deprecation, not ours
        _check_tensors(exported, name)
        exported = decomposed(fold_weights(exported))
        _check_tensors(exported, name)
        _check_determined(exported, name)
        # TVM's importer would drop it: only a decomposed program says what it writes besides its outputs.
        signature = exported.graph_signature
        buffers = signature.buffers_to_mutate.items()  # a buffer may be set to what it is, as `.to(dtype)` of it
        changed = [name for output, name in buffers if signature.inputs_to_buffers.get(output) != name]
        if written := [*changed, *signature.user_inputs_to_mutate.values()]:
            raise NetworkImportError(
                f"{name} writes to {', '.join(written)} when it is called, and a compiled network keeps no state",
                remedy="export it after .eval(), or take what it changes as an input and return it as a new tensor",
                network=name,
                written=written,
            )
        mod = imported(drop_constants(fold_constants(exported)))
        # Around the calls of torch.cond's branches TVM emits no dataflow blocks, in which alone it fuses.
        return transform.ConvertToDataflow()(mod) if has_branches(mod) else mod


def has_branches(mod: IRModule) -> bool:
    """Return whether a Relax module has Relax functions beside its main one, as `torch.cond` makes of its branches."""
    return sum(isinstance(function, relax.Function) for _, function in mod.functions_items()) > 1


def where_in_network(exported: Any, operator: str) -> str:
    """Say where an operator stands in a program, e.g. `layers.3.attn, model.py:31: return torch.cumsum(x, 1)`.

    Args:
        exported: a `torch.export.ExportedProgram`, decomposed or not.
        operator: as TVM's error names it: `aten.foo.default`, `foo.default`, `foo`, or Relax's `R.foo`. The text is
            empty where the program has none of this name.
    """
    wanted = _short(operator)
    nodes = [node for node in exported.graph.nodes if node.op == "call_function"]
    matches = [n for n in nodes if str(n.target).endswith(operator)] or [n for n in nodes if _short(n.target) == wanted]
    if not matches:
        return ""
    meta = matches[0].meta
    stack = list((meta.get("nn_module_stack") or {}).values())
    module = next((str(path).removeprefix("L['self'].") for path, _ in reversed(stack) if path), "")
    frames = re.findall(r'File "([^"]+)", line (\d+), in (\S+)\n\s*(.*)', meta.get("stack_trace") or "")
    users = [frame for frame in frames if is_users(frame[0])] or frames
    lines = [f"{Path(path).name}:{line}: {code.strip()}" for path, line, _, code in users[-1:]]
    text = ", ".join(filter(None, [module, *lines]))
    return f"{text} and {len(matches) - 1} more" if len(matches) > 1 and text else text


def _short(operator: Any) -> str:
    """`cumsum` of `aten.cumsum.default`, `cumsum.default` and `R.nn.cumsum`."""
    parts = [part for part in re.findall(r"\w+", str(operator)) if part not in ("aten", "prims", "torch", "R", "relax")]
    return parts[-1] if parts[0] == "nn" else parts[0]


def is_users(path: str) -> bool:
    """Return whether a file of Python code is the user's own."""
    return not any(part in path for part in _LIBRARIES)


def check_memory(path: Path | str, weights: int) -> None:
    """Refuse a file whose weights, or whose inputs, this machine cannot hold.

    Raises:
        NetworkImportError: so many float32 numbers do not fit three times: as TVM's constants here, and as read and in
            the library where the network is compared with the original.
    """
    size, memory = 12 * weights, _memory()
    if size > memory:
        raise NetworkImportError(
            f"{path} has {weights / 1e9:.3g} billion numbers, which take {size / 1e9:.3g} GB of memory while they are "
            f"compiled; this machine has {memory / 1e9:.3g}",
            remedy="take a smaller network, or a machine with more memory",
            path=str(path),
        )


def _check_tensors(exported: Any, name: str) -> None:
    """Refuse a network with a tensor of a size that nobody knows before it runs, or that this machine cannot hold.

    PyTorch computes the output to compare with, so that it has to hold it, too.
    """
    for node in exported.graph.nodes:
        values = node.meta.get("val")
        for value in values if isinstance(values, list | tuple) else [values]:
            if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
                continue
            if is_functorch_wrapped_tensor(value):  # inside of torch.vmap, before the decomposition
                continue
            size, memory = value.untyped_storage().nbytes(), _memory()  # of a view that of what it shows
            if has_free_unbacked_symbols(size) or has_free_unbacked_symbols(tuple(value.shape)):
                raise NetworkImportError(
                    f"{name} makes a tensor whose size depends on the values of its inputs ({node.name}, "
                    f"{list(value.shape)}), and a compiled network has fixed sizes",
                    remedy="export the part before or after it, pad to the largest size instead of selecting, or hold "
                    "an input that is always the same, as the edges of a graph are, in the module: register_buffer",
                    network=name,
                )
            if size > memory:
                raise NetworkImportError(
                    f"{name} makes a tensor of {size / 1e9:.3g} GB ({node.name}, {list(value.shape)}); this machine "
                    f"has {memory / 1e9:.3g} GB of memory",
                    remedy="take a smaller network, or a machine with more memory",
                    network=name,
                )


def _check_determined(exported: Any, name: str) -> None:
    """Refuse a network that draws random numbers: no output could be compared with the original's."""
    for node in nodes_of(exported.graph_module):
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            location = where_in_network(exported, str(node.target))
            raise NetworkImportError(
                f"{name} draws random numbers ({location or node.target}), and a compiled network draws none",
                remedy="export it after .eval(), or take the random numbers as an input",
                network=name,
                operator=str(node.target),
                location=location,
            )


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
