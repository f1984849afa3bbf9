"""`tchub corpus`: what a folder of measured programs holds, whether it can be trusted, and what it can be made from."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import click

# name -> module in this folder; each module holds a click command named `command`.
COMMANDS = {
    "import": "corpus_import",
    "stats": "corpus_stats",
    "check": "corpus_check",
    "merge": "corpus_merge",
    "replay": "corpus_replay",
}


class LazyGroup(click.Group):
    """Imports a command's module only when that command runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name, module in COMMANDS.items() if find_spec(f".{module}", __package__)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        return import_module(f".{COMMANDS[cmd_name]}", __package__).command


@click.group("corpus", cls=LazyGroup)
def command() -> None:
    """Look into corpora of measured programs, make them from other tools' logs, and join them.

    \b
    Examples:
      tchub corpus import v100.json.xz --device v100 --out corpora/v100
      tchub corpus stats corpora/epyc
      tchub corpus check corpora/epyc --json
      tchub corpus merge epyc/shard-*-of-8 --out epyc
    """
