"""`scripts/build_index.py`: cards and index follow the checkpoints' files, and a listed version never changes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tchub.hub.registry import Index
from toy_checkpoints import write_toy

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "build_index.py"


def build(root: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--root", str(root), *args]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def repository(tmp_path) -> Path:
    for folder in ("cards", "hub/registry"):
        (tmp_path / folder).mkdir(parents=True)
    for version in ("1.0.0", "1.0.1"):
        write_toy(tmp_path / "zoo/checkpoints/tcl-epyc" / version, "tcl-epyc", version)
    return tmp_path


def test_cards_and_index_are_written_once_and_then_up_to_date(repository):
    assert build(repository, "--check").returncode == 1
    assert not (repository / "cards/tcl-epyc.md").exists(), "a check writes nothing"
    assert build(repository).returncode == 0
    assert (repository / "cards/tcl-epyc.md").read_text().count("tcl-epyc@1.0.1") == 1
    index = Index.read(repository / "hub/registry/index.json")
    assert [entry.id for entry in index.entries] == ["tcl-epyc@1.0.0", "tcl-epyc@1.0.1"]
    checked = build(repository, "--check", "--json")
    assert checked.returncode == 0
    assert json.loads(checked.stdout) == {"checkpoints": ["tcl-epyc@1.0.0", "tcl-epyc@1.0.1"], "stale": []}


def test_new_metrics_are_noticed(repository):
    build(repository)
    path = repository / "zoo/checkpoints/tcl-epyc/1.0.1/metrics.json"
    path.write_text(path.read_text().replace("0.91", "0.93"))
    checked = build(repository, "--check", "--json")
    assert checked.returncode == 1
    assert "hub/registry/index.json" in json.loads(checked.stdout)["stale"]
    assert "cards/tcl-epyc.md" in json.loads(checked.stdout)["stale"]


def test_a_listed_version_may_not_get_other_weights(repository):
    build(repository)
    weights = repository / "zoo/checkpoints/tcl-epyc/1.0.0/model.safetensors"
    weights.write_bytes(weights.read_bytes() + b"\0")
    refused = build(repository)
    assert refused.returncode == 1
    assert "versions never change" in refused.stderr
    assert build(repository, "--replace").returncode == 0


def test_what_publishing_added_is_kept(repository):
    build(repository)
    path = repository / "hub/registry/index.json"
    index = json.loads(path.read_text())
    index["checkpoints"][0] |= {"sources": ["hf://org/tcl-epyc"], "revision": "1" * 40, "deprecated": "old"}
    path.write_text(json.dumps(index))
    build(repository)
    entry = Index.read(path).entries[0]
    assert (entry.sources, entry.revision, entry.deprecated) == (("hf://org/tcl-epyc",), "1" * 40, "old")


def test_the_repositorys_own_index_and_cards_are_up_to_date():
    checked = build(SCRIPT.parent.parent, "--check")
    assert checked.returncode == 0, checked.stderr
