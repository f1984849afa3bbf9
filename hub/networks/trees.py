"""Nested arguments and results of a network as JSON trees, whose leaves are tensors by number and constants.

A leaf is `{"tensor": i}` or `{"value": constant}`. An inner node has one key: `list`, `tuple` (of nodes), `dict` (pairs
of key and node), `namedtuple` (its type's name and pairs of field and node) or `results` (pairs of field and node, for
dataclasses and the outputs of transformers). Nothing here needs PyTorch.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator, Mapping, Sequence
from keyword import iskeyword
from typing import Any

from .errors import NetworkInputError

Tree = dict[str, Any]
Constant = bool | int | float | str | None

_MAX_DEPTH = 40  # of a tree in a file; Python's own limit on recursion is far


class Outputs(dict[str, Any]):
    """Results by name, as `out["logits"]`, `out.logits` or, in their order, `out[0]`."""

    def __getitem__(self, key: Any) -> Any:
        return list(self.values())[key] if isinstance(key, int | slice) else super().__getitem__(key)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getitem__(name)
        except KeyError:
            raise AttributeError(f"the network returned {', '.join(self) or 'nothing'}, and no {name}") from None


def leaves(node: Tree, path: str = "") -> Iterator[tuple[str, Tree]]:
    """Yield the leaves of a tree, each with its path: names and positions joined by `_`."""
    children = _children(node)
    if children is None:
        yield path, node
        return
    for key, child in children:
        yield from leaves(child, f"{path}_{key}" if path else str(key))


def flatten(node: Tree, value: Any, where: str, tensors: dict[int, tuple[str, Any]]) -> None:
    """Collect the tensors of an argument.

    Args:
        node: the argument's tree.
        value: what the caller gave.
        where: how an error calls it, e.g. `opts['mask']`.
        tensors: takes the place of each tensor and the tensor, by the number of the leaf.

    Raises:
        NetworkInputError: the argument has another structure, or another constant.
    """
    if "tensor" in node:
        tensors[node["tensor"]] = (where, value)
        return
    if "value" in node:
        _check_constant(node["value"], value, where)
        return
    for child, inner, path in _matched(node, value, where):
        flatten(child, inner, path, tensors)


def unflatten(node: Tree, tensors: Sequence[Any]) -> Any:
    """Build the value of a tree from tensors in the order of their numbers."""
    children = _children(node)
    if children is None:
        return tensors[node["tensor"]] if "tensor" in node else node["value"]
    values = [unflatten(child, tensors) for _, child in children]
    kind = _kind(node)
    if kind == "list":
        return values
    if kind == "tuple":
        return tuple(values)
    if kind == "namedtuple":
        return namedtuple(node[kind][0], [key for key, _ in children])(*values)
    pairs = zip((key for key, _ in children), values, strict=True)
    return dict(pairs) if kind == "dict" else Outputs(pairs)


def check_tree(node: Any, tensors: int, depth: int = 0) -> None:
    """Check a tree that was read from a file.

    Args:
        node: the tree.
        tensors: how many tensors there are.

    Raises:
        ValueError: it is none, with the reason.
    """
    if not isinstance(node, dict) or len(node) != 1 or depth > _MAX_DEPTH:
        raise ValueError("a node is an object with one key, not nested too deeply")
    kind, inner = next(iter(node.items()))
    if kind == "tensor":
        if isinstance(inner, bool) or not isinstance(inner, int) or not 0 <= inner < tensors:
            raise ValueError(f"there is no tensor {inner!r}")
    elif kind == "value":
        if not isinstance(inner, Constant):
            raise ValueError(f"{inner!r} is no constant")
    elif kind not in _KEYED and kind not in ("list", "tuple"):
        raise ValueError(f"there is no kind of node called {kind!r}")
    else:
        for key, child in _listed(kind, inner):
            if (kind == "namedtuple" and not _is_field(key)) or (kind == "results" and not isinstance(key, str)):
                raise ValueError(f"{key!r} is no name of a field")
            if not isinstance(key, Constant):
                raise ValueError(f"{key!r} is no key")
            check_tree(child, tensors, depth + 1)


_KEYED = ("dict", "results", "namedtuple")


def _listed(kind: str, inner: Any) -> list[tuple[Any, Any]]:
    if kind == "namedtuple":
        if not (isinstance(inner, list) and len(inner) == 2 and _is_field(inner[0])):
            raise ValueError("a named tuple is a name and its fields")
        inner = inner[1]
    if not isinstance(inner, list):
        raise ValueError(f"the {kind} holds no list")
    if kind not in _KEYED:
        return list(enumerate(inner))
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in inner):
        raise ValueError(f"the {kind} holds no pairs")
    return [(key, child) for key, child in inner]


def _is_field(name: Any) -> bool:
    return isinstance(name, str) and name.isidentifier() and not iskeyword(name) and not name.startswith("_")


def _kind(node: Tree) -> str:
    return next(iter(node))


def _children(node: Tree) -> list[tuple[Any, Tree]] | None:
    """Key and tree of each child; None for a leaf."""
    kind = _kind(node)
    if kind in ("tensor", "value"):
        return None
    inner = node[kind]
    if kind in ("list", "tuple"):
        return list(enumerate(inner))
    return [(key, child) for key, child in (inner[1] if kind == "namedtuple" else inner)]


def _matched(node: Tree, value: Any, where: str) -> Iterator[tuple[Tree, Any, str]]:
    """Each child with what the caller gave for it, and where that stands."""
    kind, children = _kind(node), _children(node) or []
    if kind == "dict":
        if not isinstance(value, Mapping):
            raise _wrong(where, "a dictionary", value)
        keys = [key for key, _ in children]
        if set(keys) != set(value):
            raise NetworkInputError(
                f"{where} has the keys {_listed_keys(value)}, expected {_listed_keys(keys)}",
                remedy="give exactly the keys with which the network was exported",
                argument=where,
            )
        yield from ((child, value[key], f"{where}[{key!r}]") for key, child in children)
    elif kind == "results":
        for key, child in children:
            if not (hasattr(value, key) or (isinstance(value, Mapping) and key in value)):
                raise _wrong(where, f"something with the field {key}", value)
            yield child, value[key] if isinstance(value, Mapping) else getattr(value, key), f"{where}.{key}"
    else:
        word = "a list" if kind == "list" else "a tuple"
        if not isinstance(value, list | tuple) or len(value) != len(children):
            raise _wrong(where, f"{word} of {len(children)}", value)
        yield from ((child, value[i], f"{where}[{i}]") for i, (_, child) in enumerate(children))


def _listed_keys(keys: Any) -> str:
    return ", ".join(map(repr, keys)) or "none"


def _wrong(where: str, expected: str, value: Any) -> NetworkInputError:
    given = f"{type(value).__name__} of {len(value)}" if isinstance(value, list | tuple) else type(value).__name__
    return NetworkInputError(
        f"{where} is {given}, expected {expected}",
        remedy="give the arguments with the structure with which the network was exported",
        argument=where,
    )


def _check_constant(expected: Any, value: Any, where: str) -> None:
    if type(value) is not type(expected) or value != expected:
        shown = repr(value) if isinstance(value, Constant) else type(value).__name__
        raise NetworkInputError(
            f"{where} is {shown}, expected {expected!r}",
            remedy="the compiled network holds the value with which it was exported: give that, or export and tune "
            "the network with the other one",
            argument=where,
        )
