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
    """Collect the tensors of an argument: their paths, which start at `where`, and values, by the leaf's number.

    Raises:
        NetworkInputError: the argument has another structure, or another constant.
    """
    kind, children = _kind(node), _children(node)
    if kind == "tensor":
        tensors[node["tensor"]] = (where, value)
        return
    if children is None:
        _check_constant(node["value"], value, where)
        return
    keys = [key for key, _ in children]
    if kind == "results" and not isinstance(value, Mapping):
        value = {key: getattr(value, key) for key in keys if hasattr(value, key)}
    if kind not in ("dict", "results"):
        if not isinstance(value, list | tuple) or len(value) != len(children):
            raise _wrong(where, f"a {'list' if kind == 'list' else 'tuple'} of {len(children)}", value)
        keys = list(range(len(children)))
    elif not isinstance(value, Mapping):
        raise _wrong(where, "a dictionary", value)
    elif set(keys) != set(value):
        raise NetworkInputError(
            f"{where} has the keys {_listed_keys(value)}, expected {_listed_keys(keys)}",
            remedy="give exactly the keys with which the network was exported",
            argument=where,
        )
    for key, (_, child) in zip(keys, children, strict=True):
        flatten(child, value[key], f"{where}[{key!r}]", tensors)


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


def check_tree(node: Any, tensors: int) -> None:
    """Raise ValueError unless a value that was read from a file is a tree of so many tensors."""
    if not isinstance(node, dict) or len(node) != 1:
        raise ValueError("a node is an object with one key")
    kind, inner = next(iter(node.items()))
    if kind == "tensor":
        if type(inner) is not int or not 0 <= inner < tensors:
            raise ValueError(f"there is no tensor {inner!r}")
        return
    if kind == "value":
        if not isinstance(inner, Constant):
            raise ValueError(f"{inner!r} is no constant")
        return
    if kind not in ("list", "tuple", "dict", "results", "namedtuple") or not isinstance(inner, list):
        raise ValueError(f"there is no node {kind!r} of {type(inner).__name__}")
    try:
        children = _children(node) or []
    except (TypeError, ValueError):
        raise ValueError(f"the {kind} holds no pairs") from None
    names = [key for key, _ in children] + (inner[:1] if kind == "namedtuple" else [])
    allowed = {"namedtuple": _is_field, "results": lambda name: isinstance(name, str)}
    if not all(map(allowed.get(kind, lambda key: isinstance(key, Constant)), names)):
        raise ValueError(f"the {kind} has keys that are no names: {names!r:.80}")
    for _, child in children:
        check_tree(child, tensors)


def _is_field(name: Any) -> bool:
    return isinstance(name, str) and name.isidentifier() and not iskeyword(name) and not name.startswith("_")


def _kind(node: Tree) -> str:
    return next(iter(node))


def _children(node: Tree) -> list[tuple[Any, Tree]] | None:
    """Key and tree of each child; None for a leaf."""
    kind = _kind(node)
    if kind in ("tensor", "value"):
        return None
    if kind in ("list", "tuple"):
        return list(enumerate(node[kind]))
    pairs = node[kind]
    if kind == "namedtuple":
        _, pairs = pairs
    return [(key, child) for key, child in pairs]


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
