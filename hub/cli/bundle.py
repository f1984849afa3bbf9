"""`tchub bundle`: compile programs here, measure them where no compiler is, take the results back."""

from __future__ import annotations

from importlib import import_module

import click

# name -> module in this folder; each module holds a click command named `command`.
COMMANDS = {"build": "bundle_build", "runtime": "bundle_runtime", "ingest": "bundle_ingest"}


class LazyGroup(click.Group):
    """Imports a command's module only when that command runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        return import_module(f".{COMMANDS[cmd_name]}", __package__).command


@click.group("bundle", cls=LazyGroup)
def command() -> None:
    """Measure programs on a machine that has no compiler: a GPU machine, a small board.

    \b
    Examples:
      tchub bundle build --workload bert-tiny --target h200 --programs 200 --output h200.zip
      python3 h200.zip --output results.jsonl          # on the GPU machine: driver, Python and numpy
      tchub bundle ingest results.jsonl --bundle h200.zip --device h200 --out corpora/h200
    """
