"""The index: what an entry must hold, and what is refused before anything is fetched."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tchub.hub.registry import Entry, Index, describe
from tchub.hub.registry.entry_files import WEIGHT_FILES
from tchub.hub.registry.errors import IndexFileError
from tchub.zoo.errors import TchubError
from tchub.zoo.models import files as model_files
from toy_checkpoints import publish, write_index, write_toy

GOOD = {
    "name": "tcl-epyc",
    "version": "1.0.0",
    "arch": "tcl",
    "family": "epyc",
    "format": 1,
    "feature_schema": "tcl-cpu",
    "weights_licence": "Apache-2.0",
    "data_licence": "CC0-1.0",
    "files": {
        "config.json": {"size": 10, "sha256": "a" * 64},
        "model.safetensors": {"size": 20, "sha256": "b" * 64},
    },
}


def test_an_entry_survives_a_round_trip(tmp_path):
    entry = publish(tmp_path, "tcl-epyc")
    index = Index.read(write_index(tmp_path / "index.json", entry))
    assert index.entries == (entry,)
    assert Index.parse(index.to_json()).to_json() == index.to_json()


def test_an_entry_is_described_by_its_files(tmp_path):
    entry = publish(tmp_path, "tcl-epyc", "1.2.0")
    assert entry.id == "tcl-epyc@1.2.0"
    assert set(entry.files) == {"config.json", "model.safetensors", "metrics.json", "README.md"}
    assert entry.metrics == {"top1": 0.91, "top5": 0.97, "pairwise": 0.86}
    assert entry.data["programs"] == 1200
    assert (entry.weights_licence, entry.data_licence) == ("Apache-2.0", "CC0-1.0")


@pytest.mark.parametrize("licence", ["weights", "data"])
def test_a_licence_has_no_default(tmp_path, licence):
    config = {"lineage": {}} if licence == "weights" else {"training": {}}
    folder = write_toy(tmp_path / "toy", "tcl-epyc", **config)
    with pytest.raises(IndexFileError, match=f"{licence}_licence"):
        describe(folder, "tcl-epyc", "1.0.0")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"name": "../../tmp"}, "not a checkpoint name"),
        ({"name": "tcl-epyc@1.0.0"}, "not a semantic version"),
        ({"version": "latest"}, "not a semantic version"),
        ({"format": "1"}, "format"),
        ({"format": True}, "format"),
        ({"arch": None}, "arch"),
        ({"revision": "main"}, "not a commit"),
        ({"sources": "hf://a/b"}, "sources"),
        ({"metrics": {"top1": "high"}}, "top1"),
        ({"feature_version": "1"}, "feature_version"),
        ({"files": {}}, "config.json"),
        ({"files": {"config.json": GOOD["files"]["config.json"]}}, "model.safetensors, model.json, model.txt"),
        ({"files": GOOD["files"] | {"model.txt": {"size": 1, "sha256": "c" * 64}}}, "needs one of"),
        ({"parameters": "many"}, "parameters"),
        ({"files": None}, "files"),
    ],
)
def test_a_wrong_field_is_named(change, why):
    with pytest.raises(IndexFileError, match=why):
        Entry.from_dict(GOOD | change)


@pytest.mark.parametrize(
    "name",
    [
        "../up.json",
        "/etc/passwd.json",
        "a\\b.json",
        "weights.pt",
        "model.pkl",
        ".hidden.json",
        "a/b.json",
        "x" * 99 + ".md",
    ],
)
def test_no_file_name_leaves_the_folder_or_names_a_pickle(name):
    files = GOOD["files"] | {name: {"size": 1, "sha256": "c" * 64}}
    with pytest.raises(IndexFileError, match="not allowed"):
        Entry.from_dict(GOOD | {"files": files})


@pytest.mark.parametrize(
    "record", [{"size": -1}, {"size": 1 << 40}, {"sha256": "A" * 64}, {"sha256": "short"}, {"size": 1.5}]
)
def test_sizes_and_hashes_are_bounded(record):
    files = GOOD["files"] | {"config.json": GOOD["files"]["config.json"] | record}
    with pytest.raises(IndexFileError):
        Entry.from_dict(GOOD | {"files": files})


@pytest.mark.parametrize("weights", WEIGHT_FILES)
def test_an_entry_lists_the_weights_of_its_architecture(weights):
    files = {"config.json": GOOD["files"]["config.json"], weights: {"size": 9, "sha256": "c" * 64}}
    entry = Entry.from_dict(GOOD | {"files": files})
    assert entry.lasting_files == ("config.json", weights)
    assert Entry.from_dict(json.loads(json.dumps(entry.as_dict()))) == entry


def test_the_names_of_weights_are_those_that_models_are_saved_under():
    assert set(WEIGHT_FILES) == set(model_files.WEIGHT_FILES.values())


def test_a_checkpoint_of_trees_is_described_and_one_of_two_kinds_is_not(tmp_path):
    folder = write_toy(tmp_path, "lightgbm-t4", training={"parameters": 640, "corpus": {"licence": "MIT"}})
    (folder / "model.txt").write_text("tree")
    with pytest.raises(IndexFileError, match="no whole checkpoint"):
        describe(folder, "lightgbm-t4", "1.0.0")
    (folder / "model.safetensors").unlink()
    entry = describe(folder, "lightgbm-t4", "1.0.0")
    assert entry.lasting_files[1] == "model.txt"
    assert entry.parameters == 640


def test_without_a_word_in_the_config_the_tensors_are_counted(tmp_path):
    assert describe(write_toy(tmp_path, "tcl-epyc"), "tcl-epyc", "1.0.0").parameters == 8


def test_a_newer_index_asks_for_an_upgrade(tmp_path):
    path = tmp_path / "index.json"
    path.write_text(json.dumps({"format": 99, "checkpoints": []}))
    with pytest.raises(IndexFileError, match="format 99") as caught:
        Index.read(path)
    assert "upgrade" in caught.value.remedy


def test_a_version_listed_twice_is_refused():
    with pytest.raises(IndexFileError, match="twice"):
        Index.parse(json.dumps({"format": 1, "checkpoints": [GOOD, GOOD]}))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def parsed_or_refused(text: str) -> object:
    """The index, or the remedy of the typed error; any other error fails the test."""
    try:
        return Index.parse(text)
    except TchubError as error:
        return error.remedy


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([*GOOD, "sources", "metrics", "data", "revision", "deprecated", "tvm"]), json_values)
def test_any_value_in_any_field_gives_an_entry_or_a_typed_error(key, value):
    text = json.dumps({"format": 1, "checkpoints": [GOOD | {key: value}]})
    assert parsed_or_refused(text)


@given(st.binary(max_size=64))
def test_any_bytes_give_an_index_or_a_typed_error(data):
    assert parsed_or_refused(data.decode("utf-8", "replace"))


def test_the_wheels_own_index_is_readable_and_names_files_that_ship(monkeypatch):
    monkeypatch.delenv("TCHUB_INDEX", raising=False)
    for entry in Index.default().entries:
        assert not entry.is_local
