"""What a lock file refuses, and what it is read from: it trusts nobody."""

from __future__ import annotations

import json
import subprocess
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from registry_kit import newer, release
from tchub.hub.api import pull_and_pin, pull_pinned
from tchub.hub.registry import Entry, Index
from tchub.hub.registry.errors import IndexFileError, SourceError, UnknownCheckpointError
from tchub.hub.registry.files import FileRecord, records_of
from tchub.hub.registry.lock_file import LockFile, pin
from toy_checkpoints import publish


def test_a_name_that_is_not_pinned(project):
    pull_and_pin(["tcl-epyc"])
    with pytest.raises(IndexFileError, match="does not pin tcl-t4") as caught:
        pull_pinned(["tcl-t4"])
    assert caught.value.remedy == "pin it: tchub pull tcl-t4 --lock"


def test_a_version_that_is_not_the_pinned_one(project):
    pull_and_pin(["tcl-epyc"])
    newer(project)
    assert pull_pinned(["tcl-epyc@1.0.0"])
    with pytest.raises(IndexFileError, match=r"pins tcl-epyc@1\.0\.0, not tcl-epyc@1\.1\.0"):
        pull_pinned(["tcl-epyc@1.1.0"])


def test_without_a_lock_file(project):
    with pytest.raises(IndexFileError, match="there is no lock file"):
        pull_pinned()


def test_an_index_with_other_files_for_the_pinned_version(project):
    pull_and_pin(["tcl-epyc"])
    (listed, *others) = Index.read(project.parent / "index.json").entries
    files = dict(listed.files) | {"model.safetensors": FileRecord(7, "0" * 64)}
    release(project, replace(listed, files=files), *others)
    with pytest.raises(IndexFileError, match=r"other files for tcl-epyc@1\.0\.0 .* model\.safetensors differ"):
        pull_pinned()


def test_a_pin_at_odds_with_the_index_names_the_files(project):
    pull_and_pin(["tcl-epyc"])
    lock = LockFile.read(project / "tchub.lock")
    listed = replace(
        lock.pins["tcl-epyc"], files={**lock.pins["tcl-epyc"].files, "config.json": FileRecord(1, "0" * 64)}
    )
    for call in (lambda: lock.entry("tcl-epyc", Index((listed,))), lambda: lock.with_pins([listed])):
        with pytest.raises(IndexFileError, match=r"config\.json differ") as caught:
            call()
        assert caught.value.fields["files"] == ["config.json"]


def test_a_card_that_was_corrected_since_is_taken_from_the_index(project):
    pull_and_pin(["tcl-epyc"])
    (listed, *others) = Index.read(project.parent / "index.json").entries
    card = project.parent / "zoo" / "tcl-epyc" / "1.0.0" / "README.md"
    card.write_text("corrected")
    files = dict(listed.files) | records_of(card.parent, ("README.md",))
    release(project, replace(listed, files=files), *others)
    assert pull_pinned()[0].card == "corrected"
    pull_and_pin(["tcl-epyc"])
    assert LockFile.read(project / "tchub.lock").pins["tcl-epyc"].files == files


def test_pinned_files_that_are_nowhere(project):
    pull_and_pin(["tcl-epyc"])
    for folder in ("cache", "zoo"):
        subprocess.run(["rm", "-r", project.parent / folder], check=True)
    with pytest.raises(SourceError):
        pull_pinned()


def test_a_pin_that_this_tchub_cannot_load(project):
    pull_and_pin(["tcl-epyc"])
    body = json.loads((project / "tchub.lock").read_text())
    body["checkpoints"]["tcl-epyc"]["feature_schema"] = "tcl-npu"
    (project / "tchub.lock").write_text(json.dumps(body))
    release(project)
    with pytest.raises(UnknownCheckpointError):
        pull_pinned()


def test_an_adapted_checkpoint_cannot_be_pinned(project, tmp_path):
    local = publish(tmp_path / "x", "tcl-epyc+local")
    with pytest.raises(IndexFileError, match="adapted on this machine"):
        pin(project / "tchub.lock", [local])
    assert not (project / "tchub.lock").exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not JSON"),
        ('{"format": 1, "checkpoints": {', "not JSON"),
        ("[]", "not a JSON object"),
        ('{"format": 1}', "no object of"),
        ('{"format": 1, "checkpoints": []}', "no object of"),
        ('{"checkpoints": {}}', "no format number"),
        ('{"format": NaN, "checkpoints": {}}', "NaN"),
        ('{"format": 1, "checkpoints": {}, "checkpoints": {}}', "twice"),
        ("[" * 5000, "cannot be used"),
    ],
)
def test_a_lock_file_that_is_none(project, text, says):
    (project / "tchub.lock").write_text(text)
    for use in (pull_pinned, lambda: pull_and_pin(["tcl-epyc"])):
        with pytest.raises(IndexFileError, match=says) as caught:
            use()
        assert "restore it" in caught.value.remedy
    assert (project / "tchub.lock").read_text() == text


def test_a_lock_file_of_a_newer_format(project):
    (project / "tchub.lock").write_text('{"format": 2, "checkpoints": {}}')
    with pytest.raises(IndexFileError, match="format 2") as caught:
        pull_pinned()
    assert "upgrade tchub" in caught.value.remedy


@pytest.mark.parametrize(
    "change",
    [
        {"files": {"../../up.json": {"size": 1, "sha256": "0" * 64}}},
        {"files": {"config.json": {"size": 1 << 50, "sha256": "0" * 64}}},
        {"files": {"config.json": {"size": 1, "sha256": "short"}}},
        {"version": "main"},
        {"version": "../1.0.0"},
        {"revision": "main"},
        {"sources": "https://example.org"},
        {"feature_schema": None},
    ],
)
def test_a_hostile_pin_is_refused(project, change):
    pull_and_pin(["tcl-epyc"])
    body = json.loads((project / "tchub.lock").read_text())
    pinned = body["checkpoints"]["tcl-epyc"]
    pinned |= {"files": pinned["files"] | change["files"]} if "files" in change else change
    (project / "tchub.lock").write_text(json.dumps(body))
    with pytest.raises(IndexFileError, match="cannot be used"):
        pull_pinned()


@pytest.mark.parametrize("name", ["../../etc/passwd", "tcl-epyc@1.0.0", "tcl-epyc+local", "", "x" * 9999])
def test_a_hostile_name_is_refused(project, name):
    pull_and_pin(["tcl-epyc"])
    body = json.loads((project / "tchub.lock").read_text())
    body["checkpoints"] = {name: body["checkpoints"]["tcl-epyc"]}
    (project / "tchub.lock").write_text(json.dumps(body))
    with pytest.raises(IndexFileError, match="cannot be used"):
        pull_pinned()


def test_a_huge_file_is_not_read(project, monkeypatch):
    with (project / "tchub.lock").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(IndexFileError, match="larger than"):
        pull_pinned()


# Properties

_names = st.from_regex(r"[a-z0-9]{1,6}-[a-z0-9]{1,6}", fullmatch=True)
_records = st.builds(FileRecord, st.integers(0, 1 << 30), st.from_regex(r"[0-9a-f]{64}", fullmatch=True))
_entries = st.builds(
    lambda name, version, config, weights, sources: Entry(
        name=name, version=".".join(map(str, version)), arch="tcl", family="epyc", format=1, feature_schema="tcl-cpu",
        files={"config.json": config, "model.safetensors": weights}, weights_licence="MIT", data_licence="MIT",
        sources=tuple(sources),
    ),
    _names, st.tuples(*[st.integers(0, 99)] * 3), _records, _records,
    st.lists(st.text(st.characters(categories=("L", "N", "P")), max_size=20), max_size=3),
)  # fmt: skip


@given(st.lists(_entries, max_size=5, unique_by=lambda entry: entry.name), st.randoms())
def test_what_is_written_is_read_again_and_order_does_not_matter(tmp_path_factory, entries, random):
    path = tmp_path_factory.mktemp("lock") / "tchub.lock"
    lock = LockFile(path).with_pins(entries)
    path.write_text(lock.to_json(), encoding="utf-8")
    assert LockFile.read(path) == lock
    random.shuffle(entries)
    assert LockFile(path).with_pins(entries).to_json() == lock.to_json()


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(_names, st.dictionaries(st.sampled_from(["version", "files", "sources", "revision", "format"]), _json))
def test_any_pin_is_read_or_refused_by_a_typed_error(tmp_path_factory, name, change):
    path = tmp_path_factory.mktemp("lock") / "tchub.lock"
    record = {"size": 1, "sha256": "0" * 64}
    good = {
        "version": "1.0.0", "arch": "tcl", "family": "epyc", "format": 1, "feature_schema": "tcl-cpu",
        "weights_licence": "MIT", "data_licence": "MIT", "files": {"config.json": record, "model.safetensors": record},
    }  # fmt: skip
    path.write_text(json.dumps({"format": 1, "checkpoints": {name: good | change}}))
    with suppress(IndexFileError):
        assert LockFile.read(path).entry(name, Index()).name == name
