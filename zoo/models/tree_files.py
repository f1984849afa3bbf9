"""What is checked of a file of trees before its library reads it.

The libraries follow the indices in such a file without checking them all, so a damaged or hostile file could
send them out of bounds or round in circles: here every tree is walked first. They also read numbers, repeated
fields and encodings each in a way of its own, so that a file could mean one thing here and another there: what they
are given is the file written anew from what was understood here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

OBJECTIVES = {"xgboost": ("rank:pairwise", "reg:squarederror"), "lightgbm": ("lambdarank",)}
# The largest of the leaderboard has 2 MB.
MAX_TREE_BYTES = 32 << 20


@dataclass(frozen=True)
class Tree:
    """Nodes by number, the root first; a leaf has no children (-1). `values` are thresholds and scores."""

    left: Sequence[int]
    right: Sequence[int]
    column: Sequence[int]
    values: Sequence[float]


def check_trees(data: bytes, library: str, columns: int) -> bytes:
    """Checks objective, columns and every tree.

    Returns:
        The file written anew from what was checked, which is what the library may be given.

    Raises:
        ValueError: with what is wrong.
    """
    if len(data) > MAX_TREE_BYTES:
        raise ValueError(f"it is larger than {MAX_TREE_BYTES >> 20} MiB")
    try:
        trees, rewritten = _reader(library)(data, columns)
        for number, tree in enumerate(trees):
            _check_tree(tree, columns, number)
    except (KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        raise ValueError(f"it is no model of {library} ({error!r:.200})") from error
    return rewritten


def count_nodes(data: bytes, library: str, columns: int) -> int:
    """Nodes, leaves included, of the trees in a file that passed `check_trees`."""
    return sum(len(tree.left) for tree in _reader(library)(data, columns)[0])


def check_header(library: str, objective: object, found: int, columns: int) -> None:
    """The objective is one that tchub trains, and the trees read as many columns as the model makes.

    Raises:
        ValueError: they do not.
    """
    if objective not in OBJECTIVES[library]:
        raise ValueError(f"its objective is {objective!r:.80}, not {' or '.join(OBJECTIVES[library])}")
    if found != columns:
        raise ValueError(f"it reads {found} columns, not {columns}")


def _reader(library: str) -> Callable[[bytes, int], tuple[list[Tree], bytes]]:
    from . import lightgbm_file, xgboost_file

    return {"xgboost": xgboost_file.read, "lightgbm": lightgbm_file.read}[library]


def _check_tree(tree: Tree, columns: int, number: int) -> None:
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
    if len(seen) < count:
        raise ValueError(f"tree {number} has nodes that belong to nothing")
