"""`tchub check`: every published checkpoint passes it, and it says in one line each what a reviewer would ask."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from tchub.hub.cli import main
from tchub.hub.contributing.walk import NAMES
from tchub.hub.publishing.check import QUESTIONS, check
from tchub.hub.registry.sources import bundled_root

CHECKPOINTS = sorted(path.parent for path in bundled_root().glob("*/*/config.json"))
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("folder", CHECKPOINTS, ids=lambda folder: folder.parent.name)
def test_every_checkpoint_of_the_wheel_passes(folder: Path) -> None:
    report = check(folder, evaluate=False)
    assert report.ok, report.failed
    assert [finding.name for finding in report.findings] == list(QUESTIONS)
    assert {finding.name for finding in report.not_checked} == {"scores", "leak"}


def test_without_its_corpora_two_questions_stay_open_and_it_does_not_pass(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "tcl-k80", "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    open_ones = [finding for finding in said["findings"] if finding["outcome"] == "not-checked"]
    assert [finding["name"] for finding in open_ones] == ["scores", "leak"]
    assert all("--corpus DIR/k80" in finding["remedy"] for finding in open_ones)


def test_they_may_be_left_open(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "tcl-k80", "--without-evaluation"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("ok") for line in lines) == len(QUESTIONS) - 2
    assert "tchub publish" not in lines


def test_the_next_command_can_be_pasted_whatever_the_folder_is_called(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(next(path for path in CHECKPOINTS if path.parent.name == "tcl-k80"), tmp_path / "my k80")
    assert main(["check", str(folder), "--without-evaluation"]) == 0
    (hint,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("next: ")]
    assert shlex.split(hint)[3] == str(folder)


def test_what_is_no_checkpoint_is_said_to_be_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(tmp_path / "nothing"), "--json"]) == 1
    first = json.loads(capsys.readouterr().out)["findings"][0]
    assert (first["name"], first["outcome"]) == ("files", "failed")
    assert "No such file" in first["detail"]


def test_a_published_version_without_its_weights_fails_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(next(path for path in CHECKPOINTS if path.parent.name == "tcl-k80"), tmp_path / "k80")
    (folder / "model.safetensors").unlink()
    assert main(["check", str(folder), "--without-evaluation"]) == 1
    said = capsys.readouterr().out
    assert re.search(r"FAIL +files +0 files of weights", said)
    assert re.search(r"FAIL +version +.*model\.safetensors: No such file", said)


def test_the_published_scores_of_a_checkpoint_come_out_again_on_the_repositorys_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TCHUB_CACHE", str(tmp_path))
    report = check(bundled_root() / "tcl-epyc" / "1.0.0", corpora=[ROOT / "corpora" / "epyc-turin"])
    assert report.ok, report.failed


def test_reviewers_are_told_to_ask_the_same_questions_and_contributors_of_every_step() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    _, steps, questions = re.split(r"(?m)^## Contributing a checkpoint$|^### What reviewers look at$", text)
    assert re.findall(r"(?m)^\| `(.*?)` \|", steps) == list(NAMES)
    assert re.findall(r"(?m)^\| `(.*?)` \|", questions) == list(QUESTIONS)
