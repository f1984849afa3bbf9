"""`tchub resolve`: the choice on stdout, and why every other checkpoint was passed over."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tchub.hub.cli import main
from tchub.hub.registry import Index
from tchub.zoo.devices import get_device
from toy_checkpoints import publish


@pytest.fixture
def zoo(tmp_path, monkeypatch) -> Path:
    """Checkpoints of three families, one of them in two versions, one under an old name as well, one deprecated."""
    root = tmp_path / "zoo"
    gpu = {"feature_schema": "tcl-gpu"}
    entries = (
        publish(root, "tcl-epyc", "1.0.0"),
        publish(root, "tcl-epyc", "1.1.0"),
        publish(root, "tcl-k80", entry={"transfer": {"rtx3090": {"top1": 0.8, "pairwise": 0.75, "tasks": 4}}}, **gpu),
        publish(root, "tlp-k80", entry={"deprecated": "trained on a leaky split"}, **gpu),
        publish(root, "tcl-t4", **gpu),
    )
    listed = replace(Index(entries), aliases={"tcl-rome": "tcl-epyc"})
    (tmp_path / "index.json").write_text(listed.to_json())
    for name, value in {"INDEX": "index.json", "CACHE": "cache", "HOME": "home"}.items():
        monkeypatch.setenv(f"TCHUB_{name}", str(tmp_path / value))
    monkeypatch.setenv("TCHUB_SOURCES", root.as_uri())
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("tchub.hub.device.detect.detect_local", lambda: get_device("epyc"))
    return root


@pytest.fixture
def run(capsys):
    """Run tchub; exit code, stdout, stderr."""

    def call(*args: str) -> tuple[int, str, str]:
        return main(list(args)), *capsys.readouterr()

    return call


def passed_over(text: str) -> dict[str, str]:
    """Checkpoint -> why, from the JSON."""
    return {verdict["id"]: verdict["passed_over"] for verdict in json.loads(text)["verdicts"]}


def test_without_a_name_this_machine_decides(zoo, run):
    code, out, err = run("pull", "--dry-run")
    assert code == 0
    assert out.splitlines()[0] == "tcl-epyc@1.1.0"
    assert "tcl-t4@1.0.0" in out
    assert err == "next: tchub pull tcl-epyc@1.1.0\n"
    assert run("pull", "--dry-run", "--device", "local")[1] == out


def test_a_device_decides_by_what_was_measured_on_it_and_each_other_one_has_a_reason(zoo, run):
    code, out, _ = run("pull", "--dry-run", "--device", "rtx3090", "--json")
    assert code == 0
    assert json.loads(out)["name"] == "tcl-k80"
    why = passed_over(out)
    assert why["tcl-k80@1.0.0"] == ""
    assert why["tcl-t4@1.0.0"].startswith("not measured on this device or its family; tcl-k80@1.0.0 was measured on")
    assert why["tlp-k80@1.0.0"] == "deprecated: trained on a leaky split"
    assert why["tcl-epyc@1.1.0"].startswith("rtx3090 is a gpu")


def test_the_table_shows_rank_spec_sheets_and_scores_beside_the_reason(zoo, run):
    lines = run("pull", "--dry-run", "--device", "rtx3090")[1].splitlines()
    header = next(line for line in lines if line.startswith("passed over"))
    assert header.split() == ["passed", "over", "rank", "spec", "sheets", "top-1", "pairwise", "why"]
    assert next(line for line in lines if line.startswith("tcl-t4@1.0.0")).split()[1] == "2"


def test_a_narrow_terminal_gets_the_reasons_alone(zoo, run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    out = run("pull", "--dry-run", "--device", "rtx3090")[1]
    assert "spec sheets  top-1" not in out
    assert "deprecated: trained on a leaky split" in out


def test_all_shows_the_older_versions_too(zoo, run):
    assert "tcl-epyc@1.0.0" not in passed_over(run("pull", "--dry-run", "--json")[1])
    assert passed_over(run("pull", "--dry-run", "--all-versions", "--json")[1])["tcl-epyc@1.0.0"] == "older than 1.1.0"


def test_a_family_is_resolved_within(zoo, run):
    assert passed_over(run("pull", "--dry-run", "k80", "--json")[1]) == {
        "tcl-k80@1.0.0": "",
        "tlp-k80@1.0.0": "deprecated: trained on a leaky split",
    }


def test_quiet_prints_what_pull_takes(zoo, run):
    assert run("pull", "--dry-run", "--device", "t4", "--quiet") == (0, "tcl-t4@1.0.0\n", "")


def test_an_old_name_is_resolved_with_a_warning(zoo, run):
    code, out, err = run("pull", "--dry-run", "tcl-rome")
    assert (code, out.splitlines()[0]) == (0, "tcl-epyc@1.1.0")
    assert err.splitlines()[0] == "warning: tcl-rome is called tcl-epyc now"
    assert json.loads(run("pull", "--dry-run", "tcl-rome", "--json")[1])["warnings"] == [
        "tcl-rome is called tcl-epyc now"
    ]


@pytest.mark.parametrize("command", ["pull", "info", "pull --verify"])
def test_other_commands_take_families_and_old_names_and_warn_too(zoo, run, command):
    run("pull", "tcl-epyc", "--quiet")
    code, out, err = run(*command.split(), "tcl-rome")
    assert code == 0, err
    assert "tcl-epyc" in out
    assert "warning: tcl-rome is called tcl-epyc now" in err
    assert run("pull", "k80", "--json")[0] == 0
    assert run(*command.split(), "tlp-k80")[2].startswith(
        "warning: tlp-k80@1.0.0 is deprecated: trained on a leaky split"
    )


def test_pull_says_what_it_passed_over(zoo, run):
    err = run("pull", "k80")[2]
    assert "chosen: tcl-k80@1.0.0: the same device, k80" in err
    assert "passed over: tlp-k80@1.0.0: deprecated: trained on a leaky split" in err


def test_nothing_that_fits_is_an_error_with_all_reasons(zoo, run):
    code, out, err = run("pull", "--dry-run", "mi50", "--json")
    assert code == 1
    assert json.loads(out)["error"] == "UnknownCheckpointError"
    assert "remedy:" in err


def test_an_unknown_device_is_an_error_with_the_nearest(zoo, run):
    code, out, _ = run("pull", "--dry-run", "--device", "rtx3091", "--json")
    assert code == 1
    assert json.loads(out)["error"] == "UnknownDeviceError"


def test_help_has_examples(run):
    assert "tchub pull --device graviton2 --dry-run" in run("pull", "--dry-run", "--help")[1].split("Examples:")[1]
