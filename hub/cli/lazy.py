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
        sections: of a long help, a command's name to the title above it and those that follow.
    """

    def __init__(
        self, *args: Any, modules: Mapping[str, str], sections: Mapping[str, str] | None = None, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self.modules = dict(modules)
        self.sections = dict(sections or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of `modules`."""
        return list(self.modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now; None when there is none of this name."""
        if cmd_name not in self.modules:
            return None
        return getattr(import_module(f".{self.modules[cmd_name]}", __package__), f"{cmd_name}_command")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands with their short helps, in sections where there are any."""
        if not self.sections:
            super().format_commands(ctx, formatter)
            return
        longest = max(map(len, self.modules))
        rows: dict[str, list[tuple[str, str]]] = {}
        title = ""
        for name in self.modules:
            title = self.sections.get(name, title)
            command = self.get_command(ctx, name)
            told = command.get_short_help_str(formatter.width - 6 - longest) if command else ""
            rows.setdefault(title, []).append((name.ljust(longest), told))
        for title, listed in rows.items():
            with formatter.section(title):
                formatter.write_dl(listed)
