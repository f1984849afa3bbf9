"""The commands list, info, pull and verify: data on stdout, the rest on stderr, errors with a remedy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tchub.hub.cli import main
from toy_checkpoints import publish, write_index


@pytest.fixture
def zoo(tmp_path, monkeypatch) -> Path:
    """An index of three checkpoints in a folder, empty stores, and no network."""
    root = tmp_path / "zoo"
    source = {"sources": [root.as_uri()]}
    entries = [
        publish(root, "tcl-epyc", "1.0.0", entry=source),
        publish(root, "tcl-epyc", "1.1.0", entry=source),
        publish(root, "tcl-a100", "1.0.0", entry=source, feature_schema="tcl-gpu"),
    ]
    monkeypatch.setenv("TCHUB_INDEX", str(write_index(tmp_path / "index.json", *entries)))
    monkeypatch.setenv("TCHUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TCHUB_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("TCHUB_SOURCES", raising=False)
    return root


def run(capsys, *args: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    code = main(list(args))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def run_json(capsys, *args: str):
    """The JSON that a command printed, which must be all of stdout."""
    code, out, _ = run(capsys, *args, "--json")
    return code, json.loads(out)


def test_list_shows_what_the_issue_of_a_zoo_is(zoo, capsys):
    code, out, err = run(capsys, "list")
    assert code == 0
    for word in ("name", "version", "arch", "device", "size", "top-1", "top-5", "data", "licence"):
        assert word in out.splitlines()[0]
    assert "tcl-a100" in out
    assert "0.910" in out
    assert "1,200 programs of 10 tasks" in out
    assert "Apache-2.0, data CC0-1.0" in out
    assert err == "next: tchub pull\n"


def test_list_filters_and_prints_json(zoo, capsys):
    code, rows = run_json(capsys, "list", "--family", "epyc")
    assert code == 0
    assert [(row["name"], row["version"]) for row in rows] == [("tcl-epyc", "1.0.0"), ("tcl-epyc", "1.1.0")]
    assert rows[0]["top1"] == 0.91
    assert rows[0]["size"] > 0
    assert run_json(capsys, "list", "--arch", "none") == (0, [])
    assert run_json(capsys, "list", "--local") == (0, [])


def test_a_family_learnt_from_other_devices_says_so_in_list_info_and_pull(zoo, capsys, tmp_path, monkeypatch):
    lineage = {"weights_licence": "MIT", "data": "transferred", "measured_on": ["v100", "k80"]}
    training = {"parameters": 191813, "corpus": {"licence": "MIT"}}
    facts = {"entry": {"sources": [zoo.as_uri()]}, "feature_schema": "nest-gpu"}
    entry = publish(zoo, "tilenet-t4", lineage=lineage, training=training, **facts)
    monkeypatch.setenv("TCHUB_INDEX", str(write_index(tmp_path / "t4.json", entry)))
    listed = run(capsys, "list")[1]
    for told in ("tilenet", "transferred", "nest-gpu", "191,813"):
        assert told in listed
    (row,) = run_json(capsys, "list")[1]
    assert (row["origin"], row["measured_on"], row["parameters"]) == ("transferred", ["v100", "k80"], 191813)
    for command in ("info", "pull"):
        told = run(capsys, command, "tilenet-t4")[1]
        assert "t4 (transferred from v100, k80)" in told
        assert "191,813" in told


def test_quiet_prints_the_table_and_nothing_else(zoo, capsys):
    _, out, err = run(capsys, "list", "--quiet")
    assert "tcl-epyc" in out
    assert err == ""


def test_pull_fetches_verifies_and_says_what_comes_next(zoo, capsys, tmp_path):
    code, out, err = run(capsys, "pull", "tcl-epyc")
    assert code == 0
    assert "tcl-epyc 1.1.0" in out
    assert "random choice" in out
    assert "sha256 verified" in err
    assert "next: tchub adapt tcl-epyc --device local --budget 10%" in err
    assert (tmp_path / "cache/checkpoints/tcl-epyc/1.1.0/model.safetensors").is_file()


def test_what_comes_next_names_what_was_chosen_and_fits_its_kind_of_device(zoo, capsys):
    assert "next: tchub adapt tcl-epyc --device local" in run(capsys, "pull", "epyc")[2]
    assert "next: tchub adapt tcl-epyc@1.0.0 --device local" in run(capsys, "pull", "tcl-epyc@1.0.0")[2]
    assert "next: tchub bundle" in run(capsys, "pull", "tcl-a100")[2]
    assert "--checkpoint tcl-a100 " in run(capsys, "info", "tcl-a100")[2]


def test_pull_as_json(zoo, capsys):
    code, result = run_json(capsys, "pull", "tcl-epyc@1.0.0")
    assert code == 0
    assert result["verified"] == "ok"
    assert result["source"] == zoo.as_uri()
    assert Path(result["path"]).is_dir()
    assert run_json(capsys, "pull", "tcl-epyc@1.0.0")[1]["source"] == "store"


def test_pull_without_a_name_chooses_for_this_device_and_gives_the_reasons(zoo, capsys, monkeypatch):
    from tchub.zoo.devices import get_device

    monkeypatch.setattr("tchub.hub.device.detect.detect_local", lambda: get_device("epyc"))
    code, _, err = run(capsys, "pull")
    assert code == 0
    assert "chosen: tcl-epyc@1.1.0" in err
    assert "passed over: tcl-a100@1.0.0" in err
    assert "next: tchub adapt tcl-epyc --device local" in err


def test_an_unknown_checkpoint_is_answered_with_names_reasons_and_exit_code_1(zoo, capsys, monkeypatch):
    from tchub.zoo.devices import get_device

    monkeypatch.setattr("tchub.hub.device.detect.detect_local", lambda: get_device("epyc"))
    code, out, err = run(capsys, "pull", "tcl-epic", "--json")
    error = json.loads(out)
    assert code == 1
    assert error["error"] == "UnknownCheckpointError"
    assert error["nearest"] == ["tcl-epyc"]
    assert {verdict["id"] for verdict in error["verdicts"]} == {"tcl-epyc@1.1.0", "tcl-a100@1.0.0"}
    assert err.splitlines()[-1] == "remedy: try tcl-epyc; `tchub list` shows all"


@pytest.mark.parametrize(
    ("args", "said"),
    [(("list",), "interrupted\n"), (("adapt", "tcl-epyc"), "interrupted; run the same command again to go on\n")],
)
def test_ctrl_c_before_there_is_anything_to_keep_tells_how_to_go_on(capsys, monkeypatch, args, said):
    def interrupt(*_args, **_more):
        raise KeyboardInterrupt

    monkeypatch.setattr("tchub.hub.api.list_checkpoints", interrupt)
    monkeypatch.setattr("tchub.hub.adaptation.adapt.adapt", interrupt)
    code, _, err = run(capsys, *args)
    assert (code, err.lstrip()) == (130, said)


def test_info_before_and_after_the_pull(zoo, capsys):
    code, out, err = run(capsys, "info", "tcl-epyc")
    assert code == 0
    assert "not on this machine" in err
    assert "next: tchub pull tcl-epyc" in err
    run(capsys, "pull", "tcl-epyc")
    code, out, err = run(capsys, "info", "tcl-epyc")
    assert "random choice" in out
    assert "model.safetensors" in out
    assert "weights licence  Apache-2.0" in out
    assert "not on this machine" not in err


def test_info_as_json_holds_the_entry_and_the_results(zoo, capsys):
    run(capsys, "pull", "tcl-epyc")
    _, result = run_json(capsys, "info", "tcl-epyc")
    assert result["results"]["random"]["top1"] == 0.35
    assert len(result["files"]["model.safetensors"]["sha256"]) == 64
    assert result["lineage"] == {"weights_licence": "Apache-2.0", "base": None}


def test_info_prints_the_whole_card(zoo, capsys):
    run(capsys, "pull", "tcl-epyc")
    assert "# tcl-epyc" in run(capsys, "info", "tcl-epyc", "--card")[1]


def test_verify_answers_with_a_named_outcome_and_an_exit_code(zoo, capsys, tmp_path):
    assert run_json(capsys, "pull", "--verify", "tcl-epyc")[1]["outcome"] == "not-installed"
    run(capsys, "pull", "tcl-epyc")
    code, out, _ = run(capsys, "pull", "--verify", "tcl-epyc")
    assert (code, out.strip()) == (0, "ok tcl-epyc@1.1.0")
    weights = tmp_path / "cache/checkpoints/tcl-epyc/1.1.0/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    code, result = run_json(capsys, "pull", "--verify", "tcl-epyc")
    assert (code, result["outcome"], result["path"]) == (1, "size-mismatch", str(weights))
    assert "next: tchub pull tcl-epyc@1.1.0" in run(capsys, "pull", "--verify", "tcl-epyc")[2]
    run(capsys, "pull", "tcl-epyc")
    assert run(capsys, "pull", "--verify", "tcl-epyc")[0] == 0


def test_several_names_are_pulled_in_one_command(zoo, capsys):
    code, rows = run_json(capsys, "pull", "tcl-epyc@1.0.0", "tcl-a100")
    assert code == 0
    assert [(row["name"], row["version"]) for row in rows] == [("tcl-epyc", "1.0.0"), ("tcl-a100", "1.0.0")]
    _, out, err = run(capsys, "pull", "tcl-epyc", "tcl-a100")
    assert "tcl-epyc" in out
    assert "tcl-a100@1.0.0 already here" in err


def test_verify_all_checks_what_is_here_and_fails_for_one_that_is_not_whole(zoo, capsys, tmp_path, monkeypatch):
    entries = [publish(zoo, name, "0.9.0", entry={"sources": [zoo.as_uri()]}) for name in ("tcl-epyc", "tcl-t4")]
    monkeypatch.setenv("TCHUB_INDEX", str(write_index(tmp_path / "unshipped.json", *entries)))
    assert run_json(capsys, "pull", "--verify") == (0, [])
    run(capsys, "pull", "tcl-epyc", "tcl-t4")
    code, rows = run_json(capsys, "pull", "--verify")
    assert (code, {row["name"]: row["outcome"] for row in rows}) == (0, {"tcl-epyc": "ok", "tcl-t4": "ok"})
    (tmp_path / "cache/checkpoints/tcl-t4/0.9.0/README.md").unlink()
    code, out, err = run(capsys, "pull", "--verify")
    assert (code, out) == (1, "ok tcl-epyc@0.9.0\nmissing-file tcl-t4@0.9.0\n")
    assert "next: tchub pull tcl-t4@0.9.0" in err
    assert run(capsys, "pull", "--verify", "--dry-run")[0] == 2


@pytest.mark.parametrize("args", [("pull", "a/b"), ("info", "tcl-epyc@9.9.9"), ("pull", "tcl-epyc", "--source", "x")])
def test_every_error_has_a_remedy_on_stderr_and_json_on_stdout(zoo, capsys, args):
    code, out, err = run(capsys, *args, "--json")
    assert code == 1
    assert json.loads(out)["remedy"]
    assert err.splitlines()[0].startswith("error: ")
    assert err.splitlines()[1].startswith("remedy: ")


def test_an_offline_pull_that_needs_the_network_says_so(zoo, capsys, tmp_path, monkeypatch):
    pinned = {"sources": ["hf://zoo/tlp-epyc"], "revision": "0" * 40}
    entry = publish(tmp_path / "other", "tlp-epyc", entry=pinned)
    monkeypatch.setenv("TCHUB_INDEX", str(write_index(tmp_path / "other.json", entry)))
    code, out, _ = run(capsys, "pull", "tlp-epyc", "--offline", "--json")
    assert code == 1
    assert json.loads(out)["error"] == "SourceError"


@pytest.mark.parametrize("command", ["list", "info", "pull"])
def test_help_has_examples(capsys, command):
    code, out, _ = run(capsys, command, "--help")
    assert code == 0
    assert f"tchub {command}" in out.split("Examples:")[1]


@pytest.mark.parametrize(
    "code",
    [
        "from tchub.hub.cli import main; main(['list'])",
        "from tchub.hub.cli import main; main(['info', 'tcl-epyc'])",
        "from tchub.hub.cli import main; main(['--help'])",
        "from tchub import hub; hub.list_checkpoints()",
    ],
)
def test_looking_at_the_zoo_imports_neither_torch_nor_tvm(zoo, code):
    heavy = "{'torch', 'tvm', 'huggingface_hub', 'transformers'}"
    check = f"import sys; sys.exit(', '.join({heavy} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{check}"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_hub_through_the_environment_as_a_user_has_it(zoo, tmp_path):
    from hub_protocol import running

    entry = publish(tmp_path / "other", "tlp-epyc")
    with running() as server:
        commit = server.add("zoo/tlp-epyc", tmp_path / "other" / "tlp-epyc" / "1.0.0")
        entry = replace(entry, sources=("hf://zoo/tlp-epyc",), revision=commit)
        environment = os.environ | {
            "TCHUB_INDEX": str(write_index(tmp_path / "other.json", entry)),
            "HF_ENDPOINT": server.url,
            "HF_HOME": str(tmp_path / "hf"),
            "HF_HUB_OFFLINE": "0",
        }
        argv = [sys.executable, "-c", "import sys; from tchub.hub.cli import main; sys.exit(main())"]
        done = subprocess.run(
            [*argv, "pull", "tlp-epyc", "--json"],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
        )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["source"] == "hf://zoo/tlp-epyc"


def test_the_shell_completes_commands():
    environment = os.environ | {"_TCHUB_COMPLETE": "bash_complete", "COMP_WORDS": "tchub pul", "COMP_CWORD": "1"}
    argv = [sys.executable, "-c", "import sys; from tchub.hub.cli import main; sys.exit(main())"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment)
    assert done.stdout.split() == ["plain,pull"]
