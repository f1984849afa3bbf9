"""Files of LightGBM's text format: the trees in them, and the file written anew from what was understood of it.

LightGBM ends the whole process where the numbers of a field are not as many as it expects, and follows some indices
without checking them. What it is given is therefore never the file that came from elsewhere, but one of the known
fields alone, up to the end of the trees: the settings of the training, which follow, are of no use here.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from .tree_files import Tree, check_header

_END = "end of trees\n"
_NUMBER = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?")
_WHOLE = re.compile(r"-?[0-9]{1,9}")
# The range of a column's values in training, or that it has one value.
_RANGE = re.compile(r"none|\[\S{1,60}:\S{1,60}\]")
_NAME = re.compile(r"[A-Za-z0-9_]{1,60}")
# Bits of `decision_type`: what is done with zeros and NaN is harmless; a split by categories, bit 0, is not.
_BY_CATEGORY = 1


class _Field(NamedTuple):
    """One number for each inner node, or for each leaf."""

    form: re.Pattern[str]
    of_leaves: bool = False
    needed: bool = True


_FIELDS = {
    "split_feature": _Field(_WHOLE),
    "split_gain": _Field(_NUMBER, needed=False),
    "threshold": _Field(_NUMBER),
    "decision_type": _Field(_WHOLE),
    "left_child": _Field(_WHOLE),
    "right_child": _Field(_WHOLE),
    "leaf_value": _Field(_NUMBER, of_leaves=True),
    "leaf_weight": _Field(_NUMBER, of_leaves=True, needed=False),
    "leaf_count": _Field(_WHOLE, of_leaves=True, needed=False),
    "internal_value": _Field(_NUMBER, needed=False),
    "internal_weight": _Field(_NUMBER, needed=False),
    "internal_count": _Field(_WHOLE, needed=False),
}


def read(data: bytes, columns: int) -> tuple[list[Tree], bytes]:
    """The trees, and the file written anew.

    Raises:
        ValueError, KeyError, IndexError: it is not a booster of plain trees over `columns` columns.
    """
    text = data[: data.index(_END.encode()) + len(_END)].decode("ascii")
    start, end = text.index("\nTree=0\n") + 1, len(text) - len(_END)
    head, trees = _head(_told(text[:start]), columns), []
    written, at = [], start
    for size in map(_whole, _told(text[:start])["tree_sizes"].split()):
        if not 0 < size <= end - at:
            raise ValueError("its trees are not as long as it says")
        tree, lines = _tree(_told(text[at : at + size]))
        trees.append(tree)
        written.append(f"Tree={len(written)}\n{lines}\n\n")
        at += size
    if at != end:
        raise ValueError("its trees are not as long as it says")
    sizes = " ".join(str(len(one)) for one in written)
    return trees, f"tree\n{head}\ntree_sizes={sizes}\n\n{''.join(written)}{_END}\n".encode()


def _head(said: dict[str, str], columns: int) -> str:
    """The lines before the trees, without their sizes."""
    check_header("lightgbm", said["objective"], _whole(said["max_feature_idx"]) + 1, columns)
    if (said["num_class"], said["num_tree_per_iteration"]) != ("1", "1"):
        raise ValueError("it is not one tree a round")
    for name, form in (("feature_names", _NAME), ("feature_infos", _RANGE)):
        words = said[name].split(" ")
        if len(words) != columns or not all(map(form.fullmatch, words)):
            raise ValueError(f"its {name} are not those of {columns} columns")
    known = ("num_class", "num_tree_per_iteration", "max_feature_idx", "objective", "feature_names", "feature_infos")
    return "\n".join(["version=v4", "label_index=0", *(f"{name}={said[name]}" for name in known)])


def _tree(said: dict[str, str]) -> tuple[Tree, str]:
    """A tree, whose leaves LightGBM numbers -1, -2 ... and which here come after the inner nodes; and its lines."""
    if said["num_cat"] != "0" or said.get("is_linear", "0") != "0":
        raise ValueError("it splits by categories or has linear leaves")
    leaves = _whole(said["num_leaves"])
    inner = leaves - 1
    words = {
        name: _words(said[name], field, leaves if field.of_leaves else inner)
        for name, field in _FIELDS.items()
        if name in said or (field.needed and (inner or field.of_leaves))
    }
    left, right, column, kinds = (
        [int(word) for word in words.get(name, ())]
        for name in ("left_child", "right_child", "split_feature", "decision_type")
    )
    if any(kind & _BY_CATEGORY for kind in kinds):
        raise ValueError("it splits by categories")
    left, right = ([child if child >= 0 else inner + ~child for child in side] for side in (left, right))
    rest = [-1] * leaves
    values = [float(word) for told in words.values() for word in told]
    lines = [f"num_leaves={leaves}", "num_cat=0", *(f"{name}={' '.join(told)}" for name, told in words.items())]
    tree = Tree(left + rest, right + rest, column + rest, values)
    return tree, "\n".join([*lines, "is_linear=0", "shrinkage=1", ""])


def _words(text: str, field: _Field, count: int) -> list[str]:
    words = text.split()
    if len(words) != count:
        raise ValueError("a tree is cut short")
    if not all(map(field.form.fullmatch, words)):
        raise ValueError("a tree holds NaN, infinite numbers, or something else than numbers")
    return words


def _told(text: str) -> dict[str, str]:
    pairs = [line.split("=", 1) for line in text.split("\n") if "=" in line]
    told = dict(pairs)
    if len(told) != len(pairs):
        raise ValueError("it says a field twice")
    return told


def _whole(text: str) -> int:
    if not (text.isdigit() and len(text) < 10):
        raise ValueError(f"{text!r:.80} is not a number")
    return int(text)
