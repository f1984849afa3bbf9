"""The commands list and pull: data on stdout, the rest on stderr, errors with a remedy, choices with reasons."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_kit import use_zoo
from tchub.zoo.devices import get_device
from toy_checkpoints import publish, write_index

GPU = {"feature_schema": "tcl-gpu"}
TCHUB = [sys.executable, "-c", "import sys; from tchub.hub.cli import main; sys.exit(main())"]


@pytest.fixture
def zoo(tmp_path, monkeypatch) -> Path:
    """Checkpoints of four families: one in two versions, one deprecated, one that is worse."""
    root = tmp_path / "zoo"
    source = {"sources": [root.as_uri()]}
    low = {"metrics": {"top1": 0.5, "top5": 0.9, "pairwise": 0.99}}
    transfer = {"transfer": {"rtx3090": {"top1": 0.8, "pairwise": 0.75, "tasks": 4}}}
    entries = (
        publish(root, "tcl-epyc", "1.0.0", entry=source),
        publish(root, "tcl-epyc", "1.1.0", entry=source),
        publish(root, "lstm-epyc", entry=source | low),
        publish(root, "tcl-k80", entry=source | transfer, **GPU),
        publish(root, "tlp-k80", entry=source | {"deprecated": "trained on a leaky split"}, **GPU),
        publish(root, "tcl-t4", entry=source, **GPU),
    )
    use_zoo(monkeypatch, tmp_path, write_index(tmp_path / "index.json", *entries))
    monkeypatch.setattr("tchub.hub.device.detect.detect_local", lambda: get_device("epyc"))
    return root


def test_list_shows_the_facts_by_which_one_chooses(zoo, run):
    code, out, err = run("list")
    assert code == 0
    assert {"name", "version", "arch", "device", "size", "top-1", "top-5", "data", "licence"} <= set(
        out.split("\n")[0].split()
    )
    for text in ("tcl-t4", "0.910", "1,200 programs of 10 tasks", "Apache-2.0, data CC0-1.0"):
        assert text in out
    assert err == "next: tchub pull\n"
    assert run("list", "--quiet")[2] == ""


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ([], ["tcl-epyc", "tcl-epyc", "lstm-epyc", "tcl-k80", "tlp-k80", "tcl-t4"]),
        (["--sort", "name", "--kind", "cpu"], ["lstm-epyc", "tcl-epyc", "tcl-epyc"]),
        (["--sort", "pairwise", "--family", "epyc"], ["lstm-epyc", "tcl-epyc", "tcl-epyc"]),
        (["--search", "AMD lstm"], ["lstm-epyc"]),
        (["--search", "tesla", "--arch", "tlp"], ["tlp-k80"]),
        (["--local"], []),
    ],
)
def test_list_searches_filters_and_sorts(zoo, run, arguments, wanted):
    code, rows = run.json("list", *arguments)
    assert (code, [row["name"] for row in rows]) == (0, wanted)


def test_scores_sorted_across_families_come_with_a_caution(zoo, run):
    caution = "scores of different families do not compare"
    assert caution in run("list", "--sort", "top1")[2]
    assert caution not in run("list", "--sort", "top1", "--family", "epyc")[2] + run("list")[2]
    assert run("list", "--sort", "beauty")[0] == 2


def test_lines_that_are_read_by_a_program_are_whole(zoo, run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    _, *lines = run("list", "--quiet")[1].splitlines()
    assert len(lines) == 6
    assert all("Apache-2.0, data CC0-1.0" in line for line in lines)


@pytest.mark.parametrize(
    ("arguments", "following"),
    [
        (["tcl-epyc"], "tchub adapt tcl-epyc --device local --budget 10%"),
        ([], "tchub adapt tcl-epyc --device local"),
        (["tcl-epyc@1.0.0"], "tchub adapt tcl-epyc@1.0.0 --device local"),
        (["--device", "t4"], "tchub bundle --workload bert-tiny --target DEVICE --checkpoint tcl-t4"),
    ],
)
def test_the_next_command_names_the_choice_and_fits_its_kind_of_device(zoo, run, arguments, following):
    assert f"next: {following}" in run("pull", *arguments)[2]


def test_pull_as_json_and_of_several_names(zoo, run):
    code, result = run.json("pull", "tcl-epyc@1.0.0")
    assert (code, result["verified"], result["source"]) == (0, "ok", zoo.as_uri())
    assert Path(result["path"]).is_dir()
    assert run.json("pull", "tcl-epyc@1.0.0")[1]["source"] == "store"
    code, out, err = run("pull", "tcl-epyc")
    assert (code, "tcl-epyc 1.1.0" in out, "sha256 verified" in err) == (0, True, True)
    code, rows = run.json("pull", "tcl-epyc", "tcl-t4")
    assert (code, [(row["name"], row["version"]) for row in rows]) == (0, [("tcl-epyc", "1.1.0"), ("tcl-t4", "1.0.0")])


@pytest.mark.parametrize("command", ["pull", "info", "pull --verify"])
def test_commands_warn_of_a_deprecated_checkpoint(zoo, run, command):
    assert run(*command.split(), "tlp-k80")[2].startswith("warning: tlp-k80@1.0.0 is deprecated: trained on a leaky")


@pytest.mark.parametrize(
    "arguments",
    [
        ("pull", "a/b"),
        ("info", "tcl-epyc@9.9.9"),
        ("pull", "tcl-epyc", "--source", "x"),
        ("pull", "--device", "rtx3091"),
    ],
)
def test_every_error_has_a_remedy_on_stderr_and_json_on_stdout(zoo, run, arguments):
    code, out, err = run(*arguments, "--json")
    assert (code, bool(json.loads(out)["remedy"])) == (1, True)
    assert [line.partition(":")[0] for line in err.splitlines()[:2]] == ["error", "remedy"]


@pytest.mark.parametrize(
    "arguments",
    [("--lock", "--frozen"), ("--verify", "--dry-run"), ("--lock-file", "a"), ("a-b", "c-d", "--dry-run"),
     ("a-b", "c-d", "--device", "t4")],
)  # fmt: skip
def test_options_that_exclude_each_other_are_wrong_usage(zoo, run, arguments):
    assert run("pull", *arguments)[0] == 2


def test_verify_answers_with_a_named_outcome_and_an_exit_code(zoo, run, tmp_path, monkeypatch):
    entries = [publish(zoo, name, "0.9.0", entry={"sources": [zoo.as_uri()]}) for name in ("tcl-epyc", "tcl-t4")]
    monkeypatch.setenv("TCHUB_INDEX", str(write_index(tmp_path / "unshipped.json", *entries)))
    assert run.json("pull", "--verify", "tcl-epyc")[1]["outcome"] == "not-installed"
    assert run.json("pull", "--verify") == (0, [])
    run("pull", "tcl-epyc", "tcl-t4")
    assert run("pull", "--verify", "tcl-epyc")[:2] == (0, "ok tcl-epyc@0.9.0\n")
    weights = tmp_path / "cache/checkpoints/tcl-epyc/0.9.0/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    code, result = run.json("pull", "--verify", "tcl-epyc")
    assert (code, result["outcome"], result["path"]) == (1, "size-mismatch", str(weights))
    code, out, err = run("pull", "--verify")
    assert (code, out) == (1, "size-mismatch tcl-epyc@0.9.0\nok tcl-t4@0.9.0\n")
    assert "next: tchub pull tcl-epyc@0.9.0" in err
    run("pull", "tcl-epyc")
    assert run("pull", "--verify", "tcl-epyc")[0] == 0


def test_without_a_name_this_machine_decides_and_nothing_is_fetched(zoo, run, tmp_path):
    code, out, err = run("pull", "--dry-run")
    assert (code, out.splitlines()[0], err) == (0, "tcl-epyc@1.1.0", "next: tchub pull tcl-epyc@1.1.0\n")
    assert "tcl-t4@1.0.0" in out
    assert run("pull", "--dry-run", "--device", "local")[1] == out
    assert run("pull", "--dry-run", "--device", "t4", "--quiet") == (0, "tcl-t4@1.0.0\n", "")
    assert not (tmp_path / "cache" / "checkpoints").exists()


def test_a_device_decides_by_what_was_measured_on_it_and_each_other_one_has_a_reason(zoo, run):
    _, result = run.json("pull", "--dry-run", "--device", "rtx3090")
    assert result["name"] == "tcl-k80"
    why = {verdict["id"]: verdict["passed_over"] for verdict in result["verdicts"]}
    assert why["tcl-t4@1.0.0"].startswith("not measured on this device or its family; tcl-k80@1.0.0 was measured on")
    assert why["tlp-k80@1.0.0"] == "deprecated: trained on a leaky split"
    assert why["tcl-epyc@1.1.0"].startswith("rtx3090 is a gpu")
    assert "deprecated" in run.json("pull", "--dry-run", "tlp-k80")[1]["warnings"][0]
    assert run.json("pull", "--dry-run", "mi50")[1]["error"] == "UnknownCheckpointError"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("list",), "interrupted\n"), (("adapt", "tcl-epyc"), "interrupted; run the same command again to go on\n")],
)
def test_ctrl_c_before_there_is_anything_to_keep_tells_how_to_go_on(run, monkeypatch, arguments, message):
    def interrupt(*_args, **_more):
        raise KeyboardInterrupt

    monkeypatch.setattr("tchub.hub.api.list_checkpoints", interrupt)
    monkeypatch.setattr("tchub.hub.adaptation.adapt.adapt", interrupt)
    code, _, err = run(*arguments)
    assert (code, err.lstrip()) == (130, message)


def test_the_shell_completes_commands():
    environment = os.environ | {"_TCHUB_COMPLETE": "bash_complete", "COMP_WORDS": "tchub pul", "COMP_CWORD": "1"}
    assert subprocess.check_output(TCHUB, text=True, env=environment).split() == ["plain,pull"]
