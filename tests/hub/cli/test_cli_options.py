"""Options built from a config, and the command line that is given again."""

from __future__ import annotations

from dataclasses import dataclass, field

import click
import pytest
from cli_kit import Shell
from click.testing import CliRunner
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
    from tchub.hub.cli import COMMANDS

    measuring = {"adapt", "bundle", "collect", "contribute", "quickstart", "tune"}
    assert measuring <= set(COMMANDS)
    for name in COMMANDS:
        code, out, _ = run(name, "--help")
        assert code == 0
        assert f"tchub {name}" in out.split("Examples:")[1]
        assert name in ("index", "corpus") or {"--json", "--quiet"} <= set(out.split())
        assert name not in measuring or "physical core" in " ".join(out.split()), "the default of --threads"
