"""Options built from a config, the command line that is given again, and what a command imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import click
import pytest
from cli_kit import Shell
from click.testing import CliRunner
from tchub.hub.cli import COMMANDS, cli
from tchub.hub.cli.options import command, corpora_option, given_again, options_of, shape_option


@dataclass(frozen=True)
class OvenConfig:
    """Settings of an oven.

    Attributes:
        degrees: temperature in `Celsius`. It is held.
        mode: how it heats:
            from one side or both.
        fan: turns the fan on; light: leaves the light on.
        shelves: which shelves hold a tray.
    """

    degrees: int = 180
    mode: str = field(default="top", metadata={"choices": ("top", "both")})
    fan: bool = True
    shelves: str | tuple[int, ...] = ()


@command("bake")
@options_of(OvenConfig, "degrees", "mode", "fan", "shelves", fan="Turn the fan on.")
@corpora_option("Recipes.")
@shape_option
def bake(output, **options):
    result = {key: str(value) for key, value in options.items()} | {"again": given_again(only=["mode", "shapes"])}
    output.data(result, str(result))


def test_a_config_gives_names_types_defaults_and_helps() -> None:
    text = CliRunner().invoke(bake, ["--help"], terminal_width=100).output
    for line in ("--degrees N", "Temperature in Celsius.", "--mode S", "How it heats: from one side or both."):
        assert line in text
    assert "It is held" not in text
    assert "--fan / --no-fan" in text
    result = CliRunner().invoke(bake, ["--no-fan", "--mode", "both", "--shape", "a=1,2", "--shape", "b=3"])
    assert "'fan': 'False'" in result.output
    assert "'shelves': 'None'" in result.output, "no default that an option could show"
    assert "--mode both --shape a=1,2 --shape b=3" in result.output
    assert isinstance(bake, click.Command)


@pytest.mark.parametrize("arguments", [["--degrees", "hot"], ["--mode", "side"], ["--shape", "batch=x"]])
def test_values_of_another_type_are_wrong_usage(arguments: list[str]) -> None:
    assert CliRunner().invoke(bake, arguments).exit_code == 2


def test_every_command_has_examples_json_and_quiet_and_threads_where_it_measures(run: Shell) -> None:
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
found = {}
for arguments in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()):
        code = main(arguments)
    found[" ".join(arguments)] = [code, [name for name in json.loads(sys.argv[2]) if name in sys.modules]]
print(json.dumps(found))
"""


def heavy_imports(tmp_path: Path, *commands: list[str]) -> dict[str, tuple[int, list[str]]]:
    """Exit code and heavy modules after each of several commands, run one after the other by one Python."""
    places = {"TCHUB_CACHE": str(tmp_path / "cache"), "TCHUB_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", PROGRAM, json.dumps(commands), json.dumps(HEAVY)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | places)
    return {name: (code, heavy) for name, (code, heavy) in json.loads(done.stdout).items()}


def test_no_help_of_any_command_imports_anything_heavy(tmp_path: Path) -> None:
    configured = ["adapt", "tune"]  # whose options are made of configs that are defined beside code with numpy
    light = heavy_imports(tmp_path, ["--help"], *([name, "--help"] for name in COMMANDS if name not in configured))
    assert light == dict.fromkeys(light, (0, []))
    found = heavy_imports(tmp_path, *([name, "--help"] for name in configured))
    assert all(code == 0 and set(heavy) <= {"numpy"} for code, heavy in found.values())


def test_what_only_looks_at_the_zoo_imports_nothing_heavy(tmp_path: Path) -> None:
    looks = ["list", "list --json", "info tcl-epyc", "pull --dry-run tcl-epyc --device epyc", "pull tcl-epyc --offline"]
    looks += ["pull --verify tcl-epyc", "cache", "index show", "devices"]
    found = heavy_imports(tmp_path, *map(str.split, looks))
    assert found == dict.fromkeys(looks, (0, []))


def test_the_python_module_imports_nothing_heavy() -> None:
    code = f"import sys, tchub.hub, tchub.hub.registry; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def leaves() -> list[click.Command]:
    with cli.make_context("tchub", [], resilient_parsing=True) as context:
        commands = [cli.get_command(context, name) for name in COMMANDS]
    return [leaf for one in commands for leaf in (one.commands.values() if isinstance(one, click.Group) else [one])]


def test_there_are_at_most_24_commands() -> None:
    assert len(leaves()) <= 24
