"""The index: what an entry must hold, and what is refused before anything is fetched."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from registry_kit import GOOD
from tchub.hub.registry import Entry, Index, describe
from tchub.hub.registry.errors import IndexFileError
from tchub.hub.registry.files import MAX_BYTES
from tchub.zoo.errors import TchubError
from tchub.zoo.primitives.metaschedule import TVM_RELEASES
from toy_checkpoints import write_toy


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
        ({"version": "latest"}, "is not a version"),
        ({"format": True}, "format"),
        ({"revision": "main"}, "revision"),
        ({"sources": "hf://a/b"}, "sources"),
        ({"metrics": {"top1": "high"}}, "metrics"),
        ({"files": {"config.json": GOOD["files"]["config.json"]}}, "files lacks model.safetensors"),
        ({"files": GOOD["files"] | {f"f{i}.md": {"size": 1, "sha256": "c" * 64} for i in range(40)}}, "files"),
        ({"sources": ["file:///" + "a" * 600]}, "sources"),
        ({"tvm_range": ">=0.27,newest"}, "tvm_range"),
        ({"transfer": {"t4": {"top1": True}}}, "transfer"),
        ({"transfer": {f"d{i}": {"top1": 0.5} for i in range(300)}}, "transfer"),
        *(
            ({"files": GOOD["files"] | {"config.json": GOOD["files"]["config.json"] | record}}, "files")
            for record in ({"size": -1}, {"size": 1 << 40}, {"size": 1.5}, {"sha256": "A" * 64}, {"sha256": "short"})
        ),
    ],
)
def test_a_wrong_field_is_named(change, why):
    with pytest.raises(IndexFileError, match=why):
        Entry.from_dict(GOOD | change)


@pytest.mark.parametrize(
    "name",
    [
        *("../up.json", "/etc/passwd.json", "a\\b.json", "weights.pt", "model.pkl", ".hidden.json", "a/b.json"),
        *("x" * 99 + ".md", "entry.json", "Config.json"),
    ],
)
def test_no_file_name_leaves_the_folder_or_names_a_pickle(name):
    files = GOOD["files"] | {name: {"size": 1, "sha256": "c" * 64}}
    with pytest.raises(IndexFileError, match=r"not allowed|case alone"):
        Entry.from_dict(GOOD | {"files": files})


def test_a_name_of_one_machine_is_refused_as_it_would_hide_what_was_adapted_here():
    with pytest.raises(IndexFileError, match=r"names with \+ are of one machine alone: tcl-epyc\+local") as caught:
        Index.parse(listing(checkpoints=[GOOD, GOOD | {"name": "tcl-epyc+local", "version": "2.0.0"}]))
    assert "names without +" in caught.value.remedy


def listing(**changes) -> str:
    """The text of an index of one good checkpoint."""
    return json.dumps({"format": 1, "serial": 3, "checkpoints": [GOOD]} | changes)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (listing().replace("20", "NaN"), "NaN"),
        (listing().replace("20", "1e999"), "too large"),
        (listing().replace("20", "9" * 5000), "digit"),
        (listing().replace("20", "9" * 30), "64 bits"),
        (listing().replace('"serial"', '"format": 1, "serial"'), "twice"),
        (listing(serial=-1), "serial"),
        (listing(note="\x1b[31mred"), "control characters"),
        (listing(note="x" * 30_000), "30000 characters"),
        ('{"a":' * 50 + "1" + "}" * 50, "nested"),
        ("[]", "not a JSON object"),
        (listing(checkpoints=[{}] * 5001), "length <= 5000"),
        (listing(checkpoints=[GOOD, GOOD]), "listed twice"),
    ],
)
def test_what_readers_could_disagree_about_or_choke_on_is_refused(text, why):
    with pytest.raises(IndexFileError, match=why):
        Index.parse(text)


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    path = tmp_path / "index.json"
    path.touch()
    os.truncate(path, MAX_BYTES + 1)
    with pytest.raises(IndexFileError, match="larger than 8388608 bytes"):
        Index.read(path)
    with pytest.raises(IndexFileError, match="larger than"):
        Index.parse(b" " * (MAX_BYTES + 1))


def test_of_two_indexes_the_versions_of_the_first_stay_and_the_newer_one_deprecates():
    ours = Index.parse(listing(serial=1))
    changed = GOOD | {"deprecated": "a leak", "arch": "tlp"}
    theirs = Index.parse(listing(serial=2, checkpoints=[changed, GOOD | {"version": "1.1.0"}]))
    both = ours.joined(theirs)
    assert [(e.id, e.arch, e.deprecated) for e in both.entries] == [
        ("tcl-epyc@1.0.0", "tcl", "a leak"),
        ("tcl-epyc@1.1.0", "tcl", None),
    ]
    assert both.serial == 2
    older = Index.parse(listing(serial=0, checkpoints=[changed]))
    assert ours.joined(older).entries == ours.entries


def test_the_releases_of_tvm_and_the_scores_elsewhere_are_described(tmp_path):
    folder = write_toy(tmp_path / "toy", "tcl-epyc")
    rows = [
        {"corpus": "one", "device": "xeon", "tasks": 3, "metrics": {"pairwise": 0.6, "top1": 0.5, "top5": 0.9}},
        {"corpus": "two", "device": "xeon", "tasks": 8, "metrics": {"pairwise": 0.7, "top1": 0.4}},
        {"corpus": "own", "device": "ryzen", "device_learnt": True, "tasks": 9, "metrics": {"pairwise": 0.9}},
        {"corpus": "nobody's", "tasks": 2, "metrics": {"pairwise": 0.8}},
    ]
    metrics = json.loads((folder / "metrics.json").read_text()) | {"transfer": rows}
    (folder / "metrics.json").write_text(json.dumps(metrics))
    entry = describe(folder, "tcl-epyc", "1.0.0")
    assert entry.transfer == {
        "xeon": {"pairwise": 0.7, "top1": 0.4, "tasks": 8},
        "ryzen": {"pairwise": 0.9, "tasks": 9, "learnt": True},
    }
    assert entry.tvm_range == TVM_RELEASES


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.sampled_from([*GOOD, "sources", "metrics", "data", "revision", "deprecated", "tvm", "tvm_range", "transfer"]),
    json_values,
)
def test_any_value_in_any_field_gives_an_entry_or_a_typed_error(key, value):
    try:
        outcome = Index.parse(listing(checkpoints=[GOOD | {key: value}]))
    except TchubError as error:
        outcome = error.remedy
    assert outcome
