"""The trees in a file of LightGBM's text format, with everything refused that the library would follow blindly."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .tree_files import Tree, check_header

_END = b"end of trees\n"
# What LightGBM writes and its own reader takes as Python does: no blanks within, no `1_000`, no hexadecimal.
_NUMBER = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?")
_WHOLE = re.compile(r"-?[0-9]{1,9}")
# Bits of `decision_type`: what is done with zeros and NaN is harmless; a split by categories, bit 0, is not.
_BY_CATEGORY = 1


def checked_part(data: bytes) -> bytes:
    """The file up to the end of its trees, which is all that `read` looks at and all that is needed to predict.

    Raises:
        ValueError: it has no such end.
    """
    return data[: data.index(_END) + len(_END)]


def read(data: bytes, columns: int) -> Iterator[Tree]:
    """The trees one after another.

    Raises:
        ValueError, KeyError, IndexError: it is not a booster of plain trees over `columns` columns.
    """
    text = checked_part(data).decode("ascii")
    start, end = text.index("\nTree=0\n") + 1, text.index(_END.decode())
    head = _fields(text[:start])
    check_header("lightgbm", head["objective"], _whole(head["max_feature_idx"]) + 1, columns)
    if (head["num_class"], head["num_tree_per_iteration"]) != ("1", "1"):
        raise ValueError("it is not one tree a round")
    if any(len(head[name].split()) != columns for name in ("feature_names", "feature_infos")):
        raise ValueError(f"it does not name {columns} columns")
    at = start
    for size in map(_whole, head["tree_sizes"].split()):
        if not 0 < size <= end - at:
            raise ValueError("its trees are not as long as it says")
        yield _tree(_fields(text[at : at + size]))
        at += size
    if at != end:
        raise ValueError("its trees are not as long as it says")


def _tree(fields: dict[str, str]) -> Tree:
    """Leaves, which LightGBM numbers -1, -2 ..., come after the inner nodes here."""
    if fields["num_cat"] != "0" or fields.get("is_linear", "0") != "0":
        raise ValueError("it splits by categories or has linear leaves")
    leaves = _whole(fields["num_leaves"])
    inner = leaves - 1
    leaf_values = _numbers(fields["leaf_value"])
    if leaves == 1:
        return Tree([-1], [-1], [-1], leaf_values)
    names = ("left_child", "right_child", "split_feature", "decision_type")
    left, right, column, kinds = ([_whole(word) for word in fields[name].split(" ")] for name in names)
    thresholds = _numbers(fields["threshold"])
    if len(leaf_values) != leaves or any(len(a) != inner for a in (left, right, column, kinds, thresholds)):
        raise ValueError("a tree is cut short")
    if any(kind & _BY_CATEGORY for kind in kinds):
        raise ValueError("it splits by categories")
    left, right = ([child if child >= 0 else inner + ~child for child in side] for side in (left, right))
    rest = [-1] * leaves
    return Tree(left + rest, right + rest, column + rest, thresholds + leaf_values)


def _fields(text: str) -> dict[str, str]:
    pairs = [line.split("=", 1) for line in text.split("\n") if "=" in line]
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("it says a field twice")
    return fields


def _numbers(text: str) -> list[float]:
    words = text.split(" ")
    if not all(map(_NUMBER.fullmatch, words)):
        raise ValueError("a tree holds NaN, infinite numbers, or something else than numbers")
    return [float(word) for word in words]


def _whole(text: str) -> int:
    if not _WHOLE.fullmatch(text):
        raise ValueError(f"{text!r:.80} is not a number")
    return int(text)
