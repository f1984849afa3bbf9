"""What is checked of a file of trees before its library reads it.

The libraries follow the indices in such a file without checking them all, so a damaged or hostile file could
send them out of bounds or round in circles: here every tree is walked first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

OBJECTIVES = {"xgboost": ("rank:pairwise", "reg:squarederror"), "lightgbm": ("lambdarank",)}


@dataclass(frozen=True)
class _Tree:
    """Nodes by number, the root first; a leaf has no children (-1)."""

    left: Sequence[int]
    right: Sequence[int]
    column: Sequence[int]
    values: Sequence[float]


def check_trees(data: bytes, library: str, columns: int) -> None:
    """Checks objective, columns and every tree.

    Raises:
        ValueError: with what is wrong.
    """
    try:
        trees = _READERS[library](data, columns)
        for number, tree in enumerate(trees):
            _check_tree(tree, columns, number)
    except (KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        raise ValueError(f"it is no model of {library} ({error!r})") from error


def count_nodes(data: bytes, library: str, columns: int) -> int:
    """Nodes, leaves included, of the trees in a file that passed `check_trees`."""
    return sum(len(tree.left) for tree in _READERS[library](data, columns))


def _check_header(library: str, objective: object, found: int, columns: int) -> None:
    if objective not in OBJECTIVES[library]:
        raise ValueError(f"its objective is {objective!r}, not {' or '.join(OBJECTIVES[library])}")
    if found != columns:
        raise ValueError(f"it reads {found} columns, not {columns}")


def _check_tree(tree: _Tree, columns: int, number: int) -> None:
    count = len(tree.left)
    if not count or len(tree.right) != count or len(tree.column) != count:
        raise ValueError(f"tree {number} is cut short")
    if not np.isfinite(np.asarray(tree.values, dtype=np.float64)).all():
        raise ValueError(f"tree {number} holds NaN or infinite numbers")
    seen, stack = set(), [0]
    while stack:
        node = stack.pop()
        if node in seen or not 0 <= node < count:
            raise ValueError(f"tree {number} is no tree at node {node}")
        seen.add(node)
        if tree.left[node] != -1:
            if not 0 <= tree.column[node] < columns:
                raise ValueError(f"tree {number} reads column {tree.column[node]} of {columns}")
            stack += [tree.left[node], tree.right[node]]


def _xgboost(data: bytes, columns: int) -> Iterator[_Tree]:
    learner = json.loads(data)["learner"]
    _check_header("xgboost", learner["objective"]["name"], int(learner["learner_model_param"]["num_feature"]), columns)
    booster = learner["gradient_booster"]
    if booster["name"] != "gbtree":
        raise ValueError(f"its booster is {booster['name']!r}, not gbtree")
    for tree in booster["model"]["trees"]:
        count = int(tree["tree_param"]["num_nodes"])
        if any(tree["split_type"]) or tree["categories"]:
            raise ValueError("it splits by categories")
        arrays = ("left_children", "right_children", "split_indices", "split_conditions", "default_left", "parents")
        if any(len(tree[name]) != count for name in arrays):
            raise ValueError("a tree is cut short")
        yield _Tree(*(tree[name] for name in arrays[:4]))


def _lightgbm(data: bytes, columns: int) -> Iterator[_Tree]:
    text = data.decode()
    start, end = text.index("\nTree=0\n") + 1, text.index("end of trees\n")
    head = _fields(text[:start])
    _check_header("lightgbm", head["objective"].split()[0], int(head["max_feature_idx"]) + 1, columns)
    if (head["num_class"], head["num_tree_per_iteration"]) != ("1", "1"):
        raise ValueError("it is not one tree a round")
    if any(len(head[name].split()) != columns for name in ("feature_names", "feature_infos")):
        raise ValueError(f"it does not name {columns} columns")
    at = start
    for size in map(int, head["tree_sizes"].split()):
        if not 0 < size <= end - at:
            raise ValueError("its trees are not as long as it says")
        yield _lightgbm_tree(_fields(text[at : at + size]))
        at += size
    if at != end:
        raise ValueError("its trees are not as long as it says")


def _lightgbm_tree(fields: dict[str, str]) -> _Tree:
    """Leaves, which LightGBM numbers -1, -2 ..., come after the inner nodes here."""
    if fields["num_cat"] != "0" or fields.get("is_linear", "0") != "0":
        raise ValueError("it splits by categories or has linear leaves")
    leaves = int(fields["num_leaves"])
    inner = leaves - 1
    leaf_values = _numbers(fields["leaf_value"])
    if leaves == 1:
        return _Tree([-1], [-1], [-1], leaf_values)
    names = ("left_child", "right_child", "split_feature", "threshold", "decision_type")
    arrays = [_numbers(fields[name]) for name in names]
    if len(leaf_values) != leaves or any(len(a) != inner for a in arrays):
        raise ValueError("a tree is cut short")
    left, right, column = (
        [int(v) if v >= 0 or name == "split_feature" else inner + ~int(v) for v in array]
        for name, array in zip(names[:3], arrays[:3], strict=True)
    )
    rest = [-1] * leaves
    return _Tree(left + rest, right + rest, column + rest, [*arrays[3], *leaf_values])


def _fields(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def _numbers(text: str) -> list[Any]:
    return [float(v) for v in text.split()]


_READERS = {"xgboost": _xgboost, "lightgbm": _lightgbm}
