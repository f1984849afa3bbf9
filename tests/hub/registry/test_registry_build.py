"""`python -m scripts.zoo.index`: cards and index follow the checkpoints' files, and a listed version never changes."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest
from tchub.hub.registry import Index
from toy_checkpoints import write_toy

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = vars(importlib.import_module("scripts.zoo.index"))


@pytest.fixture
def build(capsys):
    """Run the script; its exit code, stdout and stderr."""

    def run(root: Path, *args: str) -> tuple[int, str, str]:
        code = SCRIPT["main"](["--root", str(root), *args])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def repository(tmp_path) -> Path:
    for folder in ("cards", "hub/registry"):
        (tmp_path / folder).mkdir(parents=True)
    for version in ("1.0.0", "1.0.1"):
        write_toy(tmp_path / "zoo/checkpoints/tcl-epyc" / version, "tcl-epyc", version)
    return tmp_path


def test_cards_and_index_are_written_once_and_then_up_to_date(build, repository):
    assert build(repository, "--check")[0] == 1
    assert not (repository / "cards/tcl-epyc.md").exists(), "a check writes nothing"
    assert build(repository)[0] == 0
    assert (repository / "cards/tcl-epyc.md").read_text().count("tcl-epyc@1.0.1") == 1
    index = Index.read(repository / "hub/registry/index.json")
    assert [entry.id for entry in index.entries] == ["tcl-epyc@1.0.0", "tcl-epyc@1.0.1"]
    code, out, _ = build(repository, "--check", "--json")
    assert code == 0
    assert json.loads(out) == {"checkpoints": ["tcl-epyc@1.0.0", "tcl-epyc@1.0.1"], "stale": []}


def test_a_listed_version_may_not_get_other_weights(build, repository):
    build(repository)
    weights = repository / "zoo/checkpoints/tcl-epyc/1.0.0/model.safetensors"
    weights.write_bytes(weights.read_bytes() + b"\0")
    code, _, err = build(repository)
    assert code == 1
    assert "versions never change" in err
    assert build(repository, "--replace")[0] == 0


def test_what_publishing_added_is_kept(build, repository):
    build(repository)
    path = repository / "hub/registry/index.json"
    index = json.loads(path.read_text())
    index["checkpoints"][0] |= {"sources": ["hf://org/tcl-epyc"], "revision": "1" * 40, "deprecated": "old"}
    path.write_text(json.dumps(index))
    build(repository)
    entry = Index.read(path).entries[0]
    assert (entry.sources, entry.revision, entry.deprecated) == (("hf://org/tcl-epyc",), "1" * 40, "old")
