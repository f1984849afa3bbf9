"""Files of trees that mean harm. XGBoost and LightGBM follow much of what a file says: into other memory, or to the end
of the process. Here they are given nothing that was not understood first."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tchub.zoo.models import create
from tchub.zoo.models.tree_files import MAX_TREE_BYTES, check_trees
from tchub.zoo.untrusted import MAX_CONTAINERS

from scripts.fuzz.limits import limited

TREES = ["xgboost", "lightgbm"]
every_library = pytest.mark.parametrize("arch", TREES)
COLUMNS = 7


def fitted(arch: str) -> Any:
    """A model of three small trees over `COLUMNS` columns."""
    rng = np.random.default_rng(0)
    model = create(arch, width=3, rounds=3)
    return model.fit(rng.normal(size=(120, 4, 3)).astype(np.float32), rng.random(120), np.repeat([0, 1, 2], 40))


def refusal(data: bytes, arch: str) -> str:
    """Why the file is refused; it may take 512 MiB and a few seconds."""
    with limited(512 << 20, 30), pytest.raises(ValueError, match=r".+") as caught:
        check_trees(data, arch, COLUMNS)
    return str(caught.value)


@every_library
def test_what_the_library_is_given_scores_like_the_model_that_was_saved(arch):
    model, x = fitted(arch), np.random.default_rng(1).normal(size=(50, 4, 3)).astype(np.float32)
    again = create(arch, **model.config.as_dict())
    again.restore(check_trees(model.dump(), arch, COLUMNS))
    np.testing.assert_array_equal(again.score(x), model.score(x))


@every_library
def test_writing_anew_what_was_written_anew_changes_nothing(arch):
    once = check_trees(fitted(arch).dump(), arch, COLUMNS)
    assert check_trees(once, arch, COLUMNS) == once


def changed(change: Callable[[dict[str, Any]], object]) -> bytes:
    """XGBoost's file with its model changed."""
    content = json.loads(fitted("xgboost").dump())
    change(content["learner"])
    return json.dumps(content).encode()


def tree(learner: dict[str, Any]) -> dict[str, Any]:
    return learner["gradient_booster"]["model"]["trees"][0]


def test_parents_that_lead_out_of_the_tree_never_reach_xgboost():
    """It follows them into other memory."""
    data = changed(lambda learner: tree(learner)["parents"].__setitem__(2, -1))
    written = json.loads(check_trees(data, "xgboost", COLUMNS))
    assert tree(written["learner"])["parents"][2] == 0


def test_what_is_not_known_never_reaches_xgboost():
    def add(learner):
        learner["attributes"] = {"scikit_learn": "x" * 1000}
        learner["feature_names"] = ["f"] * 3
        tree(learner)["surprise"] = [1]

    written = check_trees(changed(add), "xgboost", COLUMNS)
    assert b"surprise" not in written
    assert b"scikit" not in written


BAD_XGBOOST = [
    (lambda m: m["learner_model_param"].update(num_class="3"), "more than one number"),
    (lambda m: m["learner_model_param"].update(num_target="2"), "more than one number"),
    (lambda m: m["learner_model_param"].update(num_feature="7_0"), "not a number"),
    (lambda m: m["learner_model_param"].update(base_score="nan"), "base score"),
    (lambda m: m["learner_model_param"].update(base_score="1e99"), "infinite in 32 bits"),
    (lambda m: m["learner_model_param"].update(base_score="[" + "9" * 400 + "]"), "infinite in 32 bits"),
    (lambda m: tree(m)["base_weights"].__setitem__(0, 1e39), "infinite in 32 bits"),
    (lambda m: m["gradient_booster"]["model"].update(tree_info=[0, 0, 5]), "one tree a round"),
    (lambda m: m["gradient_booster"]["model"].update(iteration_indptr=[0, 2**40]), "one tree a round"),
    (lambda m: m["gradient_booster"]["model"]["gbtree_model_param"].update(num_trees="9"), "the trees that it says"),
    (lambda m: m["gradient_booster"]["model"]["cats"].update(enc=[1]), "categories"),
    (lambda m: tree(m).update(categories=[1]), "categories"),
    (lambda m: tree(m)["tree_param"].update(num_nodes="999999999"), "cut short"),
    (lambda m: tree(m)["tree_param"].update(num_nodes="-1"), "not a number"),
    (lambda m: tree(m)["tree_param"].update(num_deleted="1"), "deleted nodes"),
    (lambda m: tree(m)["tree_param"].update(size_leaf_vector="3"), "several numbers"),
    (lambda m: tree(m).update(base_weights=tree(m)["base_weights"][:-1]), "cut short"),
    (lambda m: tree(m).update(left_children="1" * len(tree(m)["left_children"])), "cut short"),
    (lambda m: tree(m)["left_children"].__setitem__(0, 1.5), "else than numbers"),
    (lambda m: tree(m)["left_children"].__setitem__(0, tree(m)["right_children"][0]), "is no tree"),
    (lambda m: (tree(m)["left_children"].__setitem__(0, -1), tree(m)["right_children"].__setitem__(0, -1)), "nothing"),
]


@pytest.mark.parametrize(("change", "why"), BAD_XGBOOST)
def test_an_xgboost_file_that_lies(change, why):
    assert why in refusal(changed(change), "xgboost")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b'{"learner":' + b"[" * 100_000, "deeper"),
        (b'{"learner":' + b"[[" * 16 + b"[]," * MAX_CONTAINERS + b"[]" + b"]]" * 16 + b"}", "objects and lists"),
        (b'{"learner": "' + b"x" * MAX_TREE_BYTES + b'"}', "MiB"),
        (b'{"learner": {}, "learner": {}}', "twice"),
        (b"{L\x00\x00\x00\x00", "JSON|column"),
        (b"binf\x00\x00", "Expecting"),
        (b"bs64\tAAAA", "Expecting"),
        (b"\x80\x04\x95", "codec"),
    ],
)
def test_an_xgboost_file_that_is_a_bomb_or_another_of_its_formats(data, why):
    assert any(word in refusal(data, "xgboost") for word in why.split("|"))


def line(name: str, change: Callable[[str], str]) -> bytes:
    """LightGBM's file with the first line `name=...` changed, and the sizes of its trees right again."""
    from scripts.fuzz.targets import mend_trees

    class Never:
        def random(self):
            return 1.0

    text = fitted("lightgbm").dump().decode()
    start = text.index(f"\n{name}=") + len(name) + 2
    end = text.index("\n", start)
    return mend_trees(Never(), (text[:start] + change(text[start:end]) + text[end:]).encode())


BAD_LIGHTGBM = [
    ("split_gain", lambda words: words.rpartition(" ")[0], "cut short"),  # ends the process
    ("internal_count", lambda words: words + " 1", "cut short"),
    ("leaf_weight", lambda words: "", "cut short"),
    ("decision_type", lambda words: "1" + words[1:], "categories"),  # reads a table that is not there
    ("num_leaves", lambda _: "999999999", "cut short"),
    ("num_leaves", lambda _: "0", "cut short"),
    ("num_leaves", lambda _: "1_0", "not a number"),
    ("left_child", lambda words: "-9" + words[1:], "is no tree"),
    ("threshold", lambda words: "1_0" + words[words.index(" ") :], "else than numbers"),
    ("threshold", lambda words: "0x10" + words[words.index(" ") :], "else than numbers"),
    ("leaf_value", lambda words: "1e999" + words[words.index(" ") :], "infinite"),
    ("num_cat", lambda _: "0\nnum_cat=5", "twice"),
    ("is_linear", lambda _: "1", "linear"),
    ("feature_infos", lambda words: words + " none", "feature_infos"),
    ("feature_names", lambda words: words.replace("Column_0", "../x"), "feature_names"),
]


@pytest.mark.parametrize(("name", "change", "why"), BAD_LIGHTGBM)
def test_a_lightgbm_file_that_lies(name, change, why):
    assert why in refusal(line(name, change), "lightgbm")


def test_settings_behind_the_trees_never_reach_lightgbm():
    data = fitted("lightgbm").dump() + b"[machine_list_filename: /etc/passwd]\npandas_categorical:" + b"[" * 100_000
    assert check_trees(data, "lightgbm", COLUMNS).endswith(b"end of trees\n\n")


@pytest.mark.parametrize("sizes", ["", "0", "-1", "9" * 30, "1 " * 10])
def test_sizes_of_trees_that_are_not_theirs(sizes):
    text = fitted("lightgbm").dump().decode()
    start = text.index("tree_sizes=") + len("tree_sizes=")
    data = (text[:start] + sizes + text[text.index("\n", start) :]).encode()
    assert refusal(data, "lightgbm")
