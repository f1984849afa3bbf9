"""Groups of commands whose modules are imported only when they run, so that `--help` needs neither torch nor TVM."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click


class LazyGroup(click.Group):
    """A click group of modules of this folder.

    Args:
        modules: command's name to module's name; each module holds a click command named `command`.
    """

    def __init__(self, *args: Any, modules: Mapping[str, str], **options: Any) -> None:
        super().__init__(*args, **options)
        self.modules = dict(modules)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of `modules`."""
        return list(self.modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now; None when there is none of this name."""
        if cmd_name not in self.modules:
            return None
        return import_module(f".{self.modules[cmd_name]}", __package__).command
