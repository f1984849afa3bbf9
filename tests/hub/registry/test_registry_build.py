"""`python -m scripts.zoo.index`: cards and index follow the checkpoints' files, and a listed version never changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tchub.hub.registry import Index
from toy_checkpoints import write_toy

from scripts.zoo.index import ChangedVersionError, build


@pytest.fixture
def repository(tmp_path) -> Path:
    for folder in ("cards", "hub/registry"):
        (tmp_path / folder).mkdir(parents=True)
    for version in ("1.0.0", "1.0.1"):
        write_toy(tmp_path / "zoo/checkpoints/tcl-epyc" / version, "tcl-epyc", version)
    return tmp_path


def test_cards_and_index_are_written_once_and_then_up_to_date(repository):
    assert build(repository, write=False)[0]
    assert not (repository / "cards/tcl-epyc.md").exists(), "a check writes nothing"
    build(repository, write=True)
    assert (repository / "cards/tcl-epyc.md").read_text().count("tcl-epyc@1.0.1") == 1
    stale, index = build(repository, write=False)
    assert not stale
    assert index == Index.read(repository / "hub/registry/index.json")
    assert [entry.id for entry in index.entries] == ["tcl-epyc@1.0.0", "tcl-epyc@1.0.1"]


def test_a_listed_version_may_not_get_other_weights(repository):
    build(repository, write=True)
    weights = repository / "zoo/checkpoints/tcl-epyc/1.0.0/model.safetensors"
    weights.write_bytes(weights.read_bytes() + b"\0")
    with pytest.raises(ChangedVersionError, match="versions never change"):
        build(repository, write=True)
    build(repository, write=True, replace=True)


def test_what_publishing_added_is_kept(repository):
    build(repository, write=True)
    path = repository / "hub/registry/index.json"
    index = json.loads(path.read_text())
    index["checkpoints"][0] |= {"sources": ["hf://org/tcl-epyc"], "revision": "1" * 40, "deprecated": "old"}
    path.write_text(json.dumps(index))
    build(repository, write=True)
    entry = Index.read(path).entries[0]
    assert (entry.sources, entry.revision, entry.deprecated) == (("hf://org/tcl-epyc",), "1" * 40, "old")
