"""The trees in a file of XGBoost's JSON format, with everything refused that the library would follow blindly."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ..untrusted import parse_json
from .tree_files import Tree, check_header

_FLOATS = ("split_conditions", "base_weights", "loss_changes", "sum_hessian")
_INDICES = ("left_children", "right_children", "split_indices", "parents", "default_left", "split_type")
_BASE_SCORE = re.compile(r"\[?[+-]?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,2})?\]?")
_CATEGORIES = ("categories", "categories_nodes", "categories_segments", "categories_sizes")


def read(data: bytes, columns: int) -> Iterator[Tree]:
    """The trees one after another.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: it is not a booster of plain trees over `columns` columns.
    """
    if not data.startswith(b'{"'):  # else the library takes it for one of its binary formats
        raise ValueError("it is not XGBoost's JSON")
    learner = parse_json(data)["learner"]
    said = learner["learner_model_param"]
    check_header("xgboost", learner["objective"]["name"], _whole(said["num_feature"]), columns)
    if _whole(said["num_class"]) or _whole(said["num_target"]) != 1:
        raise ValueError("it predicts more than one number")
    if not _BASE_SCORE.fullmatch(said["base_score"]):
        raise ValueError(f"its base score is {said['base_score']!r:.80}")
    if learner["feature_names"] or learner["feature_types"]:
        raise ValueError("it names its columns, or gives them types")
    if learner["gradient_booster"]["name"] != "gbtree":
        raise ValueError(f"its booster is {learner['gradient_booster']['name']!r:.80}, not gbtree")
    model = learner["gradient_booster"]["model"]
    _check_rounds(model)
    for tree in model["trees"]:
        yield _tree(tree, columns)


def _check_rounds(model: dict[str, Any]) -> None:
    """One tree a round, and no table of categories."""
    count, said = len(model["trees"]), model["gbtree_model_param"]
    if (_whole(said["num_trees"]), _whole(said["num_parallel_tree"])) != (count, 1):
        raise ValueError("it does not hold the trees that it says")
    if model["tree_info"] != [0] * count or model["iteration_indptr"] != list(range(count + 1)):
        raise ValueError("it is not one tree a round")
    if any(model.get("cats", {}).values()):
        raise ValueError("it splits by categories")


def _tree(tree: dict[str, Any], columns: int) -> Tree:
    said = tree["tree_param"]
    count = _whole(said["num_nodes"])
    if any(tree["split_type"]) or any(tree[name] for name in _CATEGORIES):
        raise ValueError("it splits by categories")
    if [_whole(said[name]) for name in ("num_deleted", "num_feature", "size_leaf_vector")] != [0, columns, 1]:
        raise ValueError("a tree has deleted nodes, other columns, or leaves of several numbers")
    _check_arrays(tree, count)
    values = [value for name in _FLOATS for value in tree[name]]
    return Tree(tree["left_children"], tree["right_children"], tree["split_indices"], values)


def _check_arrays(tree: dict[str, Any], count: int) -> None:
    for name in (*_FLOATS, *_INDICES):
        if len(tree[name]) != count:
            raise ValueError("a tree is cut short")
        kinds = {type(value) for value in tree[name]}
        if kinds - ({int, float} if name in _FLOATS else {int}):
            raise ValueError(f"{name} of a tree holds something else than numbers")


def _whole(text: str) -> int:
    """XGBoost writes its parameters as text; what else Python takes for a whole number, the library may not."""
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ValueError(f"{text!r:.80} is not a number")
    return int(text)
