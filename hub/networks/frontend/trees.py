"""Nested arguments and results of a network as trees, whose leaves are tensors by number and constants.

Nothing here needs PyTorch; a tree is in `network.json` as it is.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import NetworkInputError

Constant = bool | int | float | str | None


class Outputs(dict[str, Any]):
    """Results by name, as `out["logits"]`, `out.logits` or, in their order, `out[0]`."""

    def __getitem__(self, key: Any) -> Any:
        return list(self.values())[key] if isinstance(key, int | slice) else super().__getitem__(key)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getitem__(name)
        except KeyError:
            raise AttributeError(f"the network returned {', '.join(self) or 'nothing'}, and no {name}") from None


@dataclass(frozen=True)
class Tree:
    """A leaf, or a container of trees.

    Attributes:
        kind: `results` is a dataclass, or the output of a model of transformers.
        value: the constant, the tensor's number, or the name of a named tuple's type.
        keys: of the children: a dictionary's, names of fields, or positions.
    """

    kind: Literal["tensor", "constant", "list", "tuple", "namedtuple", "dict", "results"]
    value: Constant = None
    keys: tuple[Constant, ...] = ()
    children: tuple[Tree, ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError where keys are too few or no names: trees are read from files."""
        if len(self.keys) != len(self.children):
            raise ValueError(f"the {self.kind} has {len(self.keys)} keys for {len(self.children)} values")
        if self.kind == "namedtuple":
            namedtuple(str(self.value), map(str, self.keys))  # refuses names that are none

    def leaves(self, path: str = "") -> Iterator[tuple[str, Tree]]:
        """Yield the leaves, each with its path: names and positions joined by `_`."""
        if self.kind in ("tensor", "constant"):
            yield path, self
        for key, child in zip(self.keys, self.children, strict=True):
            yield from child.leaves(f"{path}_{key}" if path else str(key))

    def flatten(self, value: Any, where: str, tensors: dict[int, tuple[str, Any]]) -> None:
        """Collect the tensors of an argument by number: their paths, which start at `where`, and values.

        Raises:
            NetworkInputError: the argument has another structure, or another constant.
        """
        if self.kind == "tensor":
            tensors[int(self.value or 0)] = (where, value)
            return
        if self.kind == "constant":
            if type(value) is not type(self.value) or value != self.value:
                shown = repr(value) if isinstance(value, Constant) else type(value).__name__
                raise _wrong(where, shown, repr(self.value), "or tune the network with the other one")
            return
        if self.kind in ("dict", "results"):
            if self.kind == "results" and not isinstance(value, Mapping):
                value = {key: getattr(value, str(key)) for key in self.keys if hasattr(value, str(key))}
            if not isinstance(value, Mapping) or set(value) != set(self.keys):
                shown = "{" + ", ".join(map(repr, value)) + "}" if isinstance(value, Mapping) else type(value).__name__
                raise _wrong(where, shown, "{" + ", ".join(map(repr, self.keys)) + "}")
            parts = [(key, value[key]) for key in self.keys]
        else:
            if not isinstance(value, list | tuple) or len(value) != len(self.keys):
                shown = f"{type(value).__name__} of {len(value)}" if isinstance(value, list | tuple) else repr(value)
                raise _wrong(where, shown, f"{self.kind} of {len(self.keys)}")
            parts = list(enumerate(value))
        for (key, part), child in zip(parts, self.children, strict=True):
            child.flatten(part, f"{where}[{key!r}]", tensors)

    def unflatten(self, tensors: Sequence[Any]) -> Any:
        """Build the value from tensors in the order of their numbers."""
        values = [child.unflatten(tensors) for child in self.children]
        pairs: Any = zip(self.keys, values, strict=True)
        match self.kind:
            case "tensor":
                return tensors[int(self.value or 0)]
            case "constant":
                return self.value
            case "list":
                return values
            case "tuple":
                return tuple(values)
            case "namedtuple":
                return namedtuple(str(self.value), map(str, self.keys))(*values)
        return dict(pairs) if self.kind == "dict" else Outputs(pairs)

    def shown(self, tensors: Sequence[Any]) -> str:
        """Return the text of a value, with `tensors` for its own."""
        match self.kind:
            case "tensor":
                return str(tensors[int(self.value or 0)])
            case "constant":
                return repr(self.value)
            case "list" | "tuple":
                inner = ", ".join(child.shown(tensors) for child in self.children)
                return f"[{inner}]" if self.kind == "list" else f"({inner})"
        pairs = zip(self.keys, self.children, strict=True)
        return "{" + ", ".join(f"{key}: {child.shown(tensors)}" for key, child in pairs) + "}"


def _wrong(where: str, given: str, expected: str, otherwise: str = "with the same structure") -> NetworkInputError:
    return NetworkInputError(
        f"{where} is {given}, expected {expected}",
        remedy=f"give what the network was exported with, {otherwise}",
        argument=where,
    )
