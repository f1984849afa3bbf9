"""What the documents say is what the files hold: figures, commands, and the index of checkpoints."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tchub.hub.cli import COMMANDS

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = sorted((ROOT / "docs" / "benchmarks").glob("*.json"))
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("script", ["update_readme.py", "build_index.py"])
def test_generated_files_agree_with_their_sources(script: str) -> None:
    command = [sys.executable, f"scripts/{script}", "--check"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_every_benchmark_names_machine_command_seeds_and_summary(path: Path) -> None:
    document = json.loads(path.read_text())
    assert document["benchmark"] == path.stem
    assert (ROOT / document["command"].split()[1]).is_file()
    assert {"seeds", "machine", "summary", "details", "date"} <= set(document)
    assert document["summary"]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_commands_in_the_documents_exist(path: Path) -> None:
    told = set(re.findall(r"(?m)^(?:\$ )?tchub ([a-z]+)", path.read_text()))
    assert told <= set(COMMANDS)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_files_that_the_documents_link_exist(path: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", path.read_text())
    missing = [link for link in links if not (path.parent / link).exists()]
    assert not missing
