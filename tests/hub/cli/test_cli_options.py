"""Options of commands, what they import, and the commands of the page about a new device."""

import json
import lzma
import os
import re
import shlex
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
from tchub.hub.cli import COMMANDS, main


def test_a_config_gives_options_their_types_defaults_and_helps(run):
    text = " ".join(run("tune", "--help")[1].split())
    for option in (
        "--trials N Programs to measure. [default: 500]",
        "--mode S Search or fast. [default: search]",
        "--reuse / --no-reuse Begin with what earlier runs measured on this device. [default: reuse]",
        "--shape NAME=N Sizes of a dynamic shape, e.g. batch=1,8, or the number",
    ):
        assert option in text


@pytest.mark.parametrize("arguments", [["--trials", "many"], ["--mode", "side"], ["--shape", "batch=x"]])
def test_values_of_another_type_are_wrong_usage(run, arguments):
    assert run("tune", "bert-tiny", *arguments)[0] == 2


def test_every_command_has_examples_json_and_quiet_and_threads_where_it_measures(run):
    measuring = {"adapt", "bundle", "collect", "contribute", "quickstart", "tune"}
    assert measuring <= set(COMMANDS)
    for name in COMMANDS:
        code, out, _ = run(name, "--help")
        assert code == 0
        assert f"tchub {name}" in out.split("Examples:")[1]
        assert name in ("index", "corpus") or {"--json", "--quiet"} <= set(out.split())
        assert name not in measuring or "physical core" in " ".join(out.split()), "the default of --threads"


# Half a second and more each, or of no use to a command that only reads a list.
HEAVY = ("torch", "tvm", "transformers", "matplotlib", "pyarrow", "numpy", "scipy", "xgboost", "lightgbm")
PROGRAM = """
import contextlib, io, json, sys
from tchub.hub.cli import main
after = {}
for arguments in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()):
        code = main(arguments.split())
    after[arguments] = [code, [name for name in json.loads(sys.argv[2]) if name in sys.modules]]
print(json.dumps(after))
"""
CONFIGURED = ["adapt", "tune"]  # their options are made of configs that are defined beside code with numpy
LIGHT = [
    *("--help", *(f"{name} --help" for name in COMMANDS if name not in CONFIGURED)),
    *("list", "list --json", "info tcl-epyc", "pull --dry-run tcl-epyc --device epyc", "pull tcl-epyc --offline"),
    *("pull --verify tcl-epyc", "cache", "index show", "devices"),
]


@pytest.mark.parametrize(
    ("commands", "allowed"), [(LIGHT, set()), ([f"{name} --help" for name in CONFIGURED], {"numpy"})],
    ids=["looking at the zoo and all help", "help with many options"],
)  # fmt: skip
def test_what_computes_nothing_imports_nothing_heavy(tmp_path, commands, allowed):
    """Exit code and heavy modules after each command, run one after the other by one Python."""
    own = {"TCHUB_CACHE": str(tmp_path / "cache"), "TCHUB_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    program = [sys.executable, "-c", PROGRAM, json.dumps(commands), json.dumps(HEAVY)]
    done = subprocess.run(program, capture_output=True, text=True, check=True, env=os.environ | own)
    for given, (code, heavy) in json.loads(done.stdout).items():
        assert code == 0, given
        assert set(heavy) <= allowed, given


PAGE = Path(__file__).resolve().parents[3] / "docs" / "new-device.md"


def record(m: int, n: int, rows: int, columns: int) -> str:
    """A tiled matrix product m x 64 x n in Ansor's form; wide inner tiles are fast, tall ones fill the registers."""
    steps = [
        *(["SP", 2, 0, m, [rows], 1], ["SP", 2, 2, n, [columns], 1], ["RE", 2, [0, 2, 4, 1, 3]]),
        *(["AN", 2, 0, 3], ["AN", 2, 4, 2]),
    ]
    seconds = m * n * 64e-9 * (1 / columns + 0.02 * rows + 0.1 * (rows == 1))
    task = [json.dumps(["matmul_layer", m, 64, n]), "llvm -keys=cpu", [4, 64, 64, 0, 0, 0, 0, 0], "", 0, []]
    return json.dumps({"i": [task, [[], steps]], "r": [[seconds, seconds * 1.01], 0, 1.0, 1.6e9], "v": "v0.6"})


@pytest.mark.slow
def test_every_command_of_the_page_does_what_it_says(tmp_path, monkeypatch, capsys, learnt_briefly):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs").mkdir()
    for m in (16, 32, 64, 128):
        programs = product([16, 48, 96], [1, 2, 4, 16], [1, 2, 4, 16])
        with lzma.open(tmp_path / "logs" / f"{m}.json.xz", "wt") as log:
            log.write("\n".join(record(m, *program) for program in programs))
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    commands = [line for block in blocks for line in block.splitlines()]
    assert len(commands) > 8
    forms: set[str] = set()
    for command in commands:
        program, *arguments = shlex.split(command)
        assert program == "tchub"
        # Of commands that differ in numbers alone, the first.
        if (form := re.sub(r"\d+", "N", command)) in forms:
            continue
        forms.add(form)
        assert main(arguments) == 0, (command, *capsys.readouterr())
    card = (tmp_path / "tilenet-board" / "checkpoint" / "README.md").read_text()
    assert "CC-BY-4.0" in card
