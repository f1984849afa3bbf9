"""Rankers of trees: that they rank, what their rows are made of, and which files are refused."""

import json

import numpy as np
import pytest
from tchub.zoo.devices import get_device
from tchub.zoo.errors import MissingPackageError
from tchub.zoo.models import (
    Checkpoint,
    CheckpointConfig,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    ModelConfigError,
    NotFittedError,
    create,
)
from tchub.zoo.models.lightgbm_ranker import _in_parts
from tchub.zoo.models.tree_files import check_trees
from tchub.zoo.training.metrics import evaluate_scores

TREES = ["xgboost", "lightgbm"]
every_library = pytest.mark.parametrize("arch", TREES)


def data(tasks=8, programs=40, seed=0):
    """Programs of 1 to 4 statements of 3 columns; the sum of the first column makes them fast, at each task's scale."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(tasks * programs, 4, 3)).astype(np.float32)
    for row, count in zip(x, rng.integers(1, 5, len(x)), strict=True):
        row[count:] = 0
    group = np.repeat(np.arange(tasks), programs)
    latency = np.exp(-x[:, :, 0].sum(1)) * 10.0 ** (group % 3)
    best = np.array([latency[group == g].min() for g in range(tasks)])
    return x, best[group] / latency, group, latency


def fitted(arch, **settings):
    x, labels, group, _ = data()
    settings = {"width": 3, "rows": 4, "rounds": 30} | settings
    return create(arch, **settings).fit(x, labels, group)


@every_library
@pytest.mark.parametrize("pool", [True, False])
def test_ranks_the_programs_of_tasks_it_has_not_seen(arch, pool):
    model = fitted(arch, pool=pool)
    x, _, group, latency = data(seed=1)
    assert evaluate_scores(model.score(x), latency, group, np.ones(8))["pairwise"] > 0.8


@every_library
def test_the_order_of_the_tasks_in_the_data_does_not_matter_to_what_is_learnt(arch):
    """Programs of a task need not stand together."""
    x, labels, group, latency = data()
    mixed = np.random.default_rng(0).permutation(len(x))
    model = create(arch, width=3, rounds=30).fit(x[mixed], labels[mixed], group[mixed])
    assert evaluate_scores(model.score(x), latency, group, np.ones(8))["pairwise"] > 0.8


def test_pooled_rows_by_hand():
    x = np.array([[[1, -5], [2, -3], [0, 0]], [[0, 0], [0, 0], [0, 0]]], np.float32)
    table = create("xgboost", width=2).table(x)
    np.testing.assert_array_equal(table, [[3, -8, 2, -3, 2], [0, 0, 0, 0, 0]])


def test_rows_side_by_side_by_hand():
    x = np.array([[[1, 2], [0, 0], [8, 9]]], np.float32)
    plain = create("xgboost", width=2, pool=False, rows=4).table(x)
    np.testing.assert_array_equal(plain, [[1, 2, 0, 0, 8, 9, 0, 0]])
    device_first = create("xgboost", width=2, pool=False, rows=4, hardware=True).table(x)
    np.testing.assert_array_equal(device_first, [[8, 9, 1, 2, 0, 0, 0, 0]])


def test_a_program_longer_than_the_table_is_refused_but_its_padding_is_not():
    x = np.ones((1, 5, 2), np.float32)
    model = create("xgboost", width=2, pool=False, rows=4)
    with pytest.raises(ModelConfigError, match="more than 4 rows"):
        model.table(x)
    x[:, 4] = 0
    assert model.table(x).shape == (1, 8)


@every_library
def test_without_trees_there_is_nothing_to_score_or_save(arch):
    model = create(arch)
    for use in (lambda: model.score(np.zeros((1, 10, 174), np.float32)), model.dump):
        with pytest.raises(NotFittedError):
            use()


@every_library
def test_a_missing_library_is_named(arch, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, arch, None)
    with pytest.raises(MissingPackageError, match=arch) as caught:
        fitted(arch)
    assert {"xgboost": "xgboost-cpu", "lightgbm": "tchub[bench]"}[arch] in str(caught.value.remedy)


def test_lightgbm_takes_tasks_above_its_limit_in_equal_parts():
    parts = _in_parts(np.array([7, 25_000, 10_000]))
    np.testing.assert_array_equal(parts, [7, 8334, 8333, 8333, 10_000])


@every_library
def test_its_own_file_passes(arch):
    model = fitted(arch)
    check_trees(model.dump(), arch, model.config.columns)


@every_library
def test_a_file_of_other_columns_or_another_library_is_refused(arch):
    model = fitted(arch)
    with pytest.raises(ValueError, match="columns"):
        check_trees(model.dump(), arch, model.config.columns + 1)
    other = next(a for a in TREES if a != arch)
    with pytest.raises(ValueError, match=r".+"):
        check_trees(model.dump(), other, model.config.columns)


@every_library
def test_a_file_cut_short_anywhere_is_refused(arch):
    """Of LightGBM's, the parameters that follow the trees may be missing."""
    model = fitted(arch, rounds=3)
    whole = model.dump()
    end = whole.index(b"end of trees") if arch == "lightgbm" else len(whole)
    for keep in np.linspace(0, end - 1, 40).astype(int):
        with pytest.raises(ValueError, match=r".+"):
            check_trees(whole[:keep], arch, model.config.columns)


def set_first(name, value, at=0):
    """An edit of XGBoost's first tree."""

    def edit(model):
        tree = model["learner"]["gradient_booster"]["model"]["trees"][0]
        tree[name][at] = value

    return edit


BAD_XGBOOST = {
    "is no tree": set_first("left_children", 10**6),
    "is no tree at node 0": set_first("right_children", 0),
    "reads column": set_first("split_indices", 99),
    "NaN": set_first("split_conditions", float("nan")),
    "categories": set_first("split_type", 1),
    "cut short": lambda m: m["learner"]["gradient_booster"]["model"]["trees"][0]["default_left"].pop(),
    "objective": lambda m: m["learner"]["objective"].update(name="binary:logistic"),
    "booster": lambda m: m["learner"]["gradient_booster"].update(name="gblinear"),
}


@pytest.mark.parametrize("what", BAD_XGBOOST)
def test_an_xgboost_file_that_would_mislead_the_library(what):
    model = fitted("xgboost", rounds=3)
    content = json.loads(model.dump())
    BAD_XGBOOST[what](content)
    with pytest.raises(ValueError, match=what):
        check_trees(json.dumps(content).encode(), "xgboost", model.config.columns)


def saved(arch, folder):
    model = create(arch, width=22, hardware=True, rounds=2)
    rng = np.random.default_rng(0)
    model.fit(rng.normal(size=(200, 26, 22)).astype(np.float32), rng.random(200), np.repeat([0, 1], 100))
    config = CheckpointConfig(f"{arch}-epyc", "1.0.0", arch, model.config.as_dict(), "tcl-cpu", "epyc")
    Checkpoint(config, model, get_device("epyc")).save(folder)
    return folder / {"xgboost": "model.json", "lightgbm": "model.txt"}[arch]


@every_library
def test_a_checkpoint_of_trees_is_audited_before_the_library_reads_it(arch, tmp_path, monkeypatch):
    path = saved(arch, tmp_path)
    assert Checkpoint.load(tmp_path).model.config.columns == 45
    path.write_bytes(path.read_bytes()[:500])
    monkeypatch.setattr(type(create(arch)), "restore", lambda *_: pytest.fail("the library read it"))
    with pytest.raises(CorruptCheckpointError, match=path.name):
        Checkpoint.load(tmp_path)
    path.unlink()
    with pytest.raises(CheckpointNotFoundError, match=path.name):
        Checkpoint.load(tmp_path)


def test_what_only_the_library_can_refuse_is_a_corrupt_checkpoint_too(tmp_path):
    path = saved("xgboost", tmp_path)
    content = json.loads(path.read_text())
    del content["learner"]["gradient_booster"]["model"]["tree_info"]
    path.write_text(json.dumps(content))
    with pytest.raises(CorruptCheckpointError):
        Checkpoint.load(tmp_path)


def edit_line(text, name, change):
    """Changes the first line `name=...`, keeping its length so that the sizes in the header stay true."""
    start = text.index(f"\n{name}=") + len(name) + 2
    end = text.index("\n", start)
    line = change(text[start:end])
    assert len(line) == end - start
    return text[:start] + line + text[end:]


BAD_LIGHTGBM = {
    "is no tree": ("left_child", lambda line: "0" + line[1:]),
    "reads column": ("split_feature", lambda line: "9" + line[1:]),
    "NaN": ("leaf_value", lambda line: "nan".ljust(line.index(" ")) + line[line.index(" ") :]),
    "categories": ("num_cat", lambda _: "1"),
    "objective": ("objective", lambda _: "regression"),
    "one tree a round": ("num_tree_per_iteration", lambda _: "2"),
    "as long as it says": ("tree_sizes", lambda line: line[:-1] + str((int(line[-1]) + 1) % 10)),
}


@pytest.mark.parametrize("what", BAD_LIGHTGBM)
def test_a_lightgbm_file_that_would_mislead_the_library(what):
    model = fitted("lightgbm", rounds=3)
    name, change = BAD_LIGHTGBM[what]
    text = edit_line(model.dump().decode(), name, change)
    with pytest.raises(ValueError, match=what):
        check_trees(text.encode(), "lightgbm", model.config.columns)
