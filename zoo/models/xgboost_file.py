"""Files of XGBoost's JSON format: the trees in them, and the file written anew from what was understood of it.

XGBoost follows children, parents, categories and lengths without checking them all, and reads fields that are of no
use here. What it is given is therefore never the file that came from elsewhere, but one of the known fields alone.
"""

from __future__ import annotations

import json
import re
from typing import Any

from ..untrusted import parse_json
from .tree_files import Tree, check_header

_FLOATS = ("split_conditions", "base_weights", "loss_changes", "sum_hessian")
_WHOLE = ("left_children", "right_children", "split_indices")
_CATEGORIES = ("categories", "categories_nodes", "categories_segments", "categories_sizes")
_ROOT = 2**31 - 1  # the parent of a root
_LARGEST = 3.4028235e38  # as XGBoost writes it: it holds 32 bits, and a larger number would be infinite
_BASE_SCORE = re.compile(r"\[?[+-]?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,2})?\]?")
# What the objectives ask for when they are loaded; it matters to training alone, so XGBoost's own defaults do.
_OBJECTIVE_PARAMETERS = {
    "rank:pairwise": {"lambdarank_param": {}},
    "reg:squarederror": {"reg_loss_param": {"scale_pos_weight": "1"}},
}


def read(data: bytes, columns: int) -> tuple[list[Tree], bytes]:
    """The trees, and the file written anew.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: it is not a booster of plain trees over `columns` columns.
    """
    found = parse_json(data)
    learner, version = found["learner"], found["version"]
    said, objective = learner["learner_model_param"], learner["objective"]["name"]
    check_header("xgboost", objective, _number(said["num_feature"]), columns)
    if _number(said["num_class"]) or _number(said["num_target"]) != 1:
        raise ValueError("it predicts more than one number")
    if not _BASE_SCORE.fullmatch(said["base_score"]) or not all(type(part) is int for part in version):
        raise ValueError(f"its base score is {said['base_score']!r:.80}, its version {version!r:.80}")
    booster = learner["gradient_booster"]
    if booster["name"] != "gbtree":
        raise ValueError(f"its booster is {booster['name']!r:.80}, not gbtree")
    _check_rounds(booster["model"])
    _check_range([float(said["base_score"].strip("[]"))])
    made = [_tree(tree, number, columns) for number, tree in enumerate(booster["model"]["trees"])]
    trees = [
        Tree(one["left_children"], one["right_children"], one["split_indices"], [v for n in _FLOATS for v in one[n]])
        for one in made
    ]
    model = {
        "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(len(made))},
        "iteration_indptr": list(range(len(made) + 1)),
        "tree_info": [0] * len(made),
        "trees": made,
        "cats": {"enc": [], "feature_segments": [], "sorted_idx": []},
    }
    parameters = {"base_score": said["base_score"], "boost_from_average": "1", "num_class": "0", "num_target": "1"}
    rewritten = {
        "attributes": {},
        "feature_names": [],
        "feature_types": [],
        "gradient_booster": {"model": model, "name": "gbtree"},
        "learner_model_param": parameters | {"num_feature": str(columns)},
        "objective": {"name": objective} | _OBJECTIVE_PARAMETERS[objective],
    }
    return trees, json.dumps({"learner": rewritten, "version": version[:3]}, separators=(",", ":")).encode()


def _check_rounds(model: dict[str, Any]) -> None:
    """One tree a round, and no table of categories."""
    count, said = len(model["trees"]), model["gbtree_model_param"]
    if (_number(said["num_trees"]), _number(said["num_parallel_tree"])) != (count, 1):
        raise ValueError("it does not hold the trees that it says")
    if model["tree_info"] != [0] * count or model["iteration_indptr"] != list(range(count + 1)):
        raise ValueError("it is not one tree a round")
    if any(model.get("cats", {}).values()):
        raise ValueError("it splits by categories")


def _tree(tree: dict[str, Any], number: int, columns: int) -> dict[str, Any]:
    """The tree's known fields, each of the right type and length; parents follow from the children."""
    said = tree["tree_param"]
    count = _number(said["num_nodes"])
    if any(tree["split_type"]) or any(tree[name] for name in _CATEGORIES):
        raise ValueError("it splits by categories")
    if [_number(said[name]) for name in ("num_deleted", "num_feature", "size_leaf_vector")] != [0, columns, 1]:
        raise ValueError("a tree has deleted nodes, other columns, or leaves of several numbers")
    made = {name: _array(tree, name, count, (int, float)) for name in _FLOATS}
    for name in _FLOATS:
        _check_range(made[name])
    made |= {name: _array(tree, name, count, (int,)) for name in _WHOLE}
    default = [int(bool(value)) for value in _array(tree, "default_left", count, (int, bool))]
    parents = [_ROOT] * count
    for children in (made["left_children"], made["right_children"]):
        for node, child in enumerate(children):
            if 0 < child < count:
                parents[child] = node
    sizes = {"num_deleted": "0", "num_feature": str(columns), "num_nodes": str(count), "size_leaf_vector": "1"}
    made |= {"default_left": default, "parents": parents, "split_type": [0] * count, "id": number, "tree_param": sizes}
    return made | {name: [] for name in _CATEGORIES}


def _array(tree: dict[str, Any], name: str, count: int, kinds: tuple[type, ...]) -> list[Any]:
    values = tree[name]
    if not isinstance(values, list) or len(values) != count:
        raise ValueError("a tree is cut short")
    if not set(map(type, values)) <= set(kinds):
        raise ValueError(f"{name} of a tree holds something else than numbers")
    return values


def _check_range(values: list[float]) -> None:
    if not all(-_LARGEST <= value <= _LARGEST for value in values):
        raise ValueError("it holds NaN, or numbers that are infinite in 32 bits")


def _number(text: str) -> int:
    """XGBoost writes its parameters as text; what else Python takes for a whole number, the library may not."""
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ValueError(f"{text!r:.80} is not a number")
    return int(text)
