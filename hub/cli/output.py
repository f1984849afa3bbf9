"""One output object: data to stdout (human or JSON), everything else to stderr."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from ...zoo.plain_json import plain

if TYPE_CHECKING:
    from rich.console import Console


def _console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """A console that shows texts as they are: what a file says in brackets or between colons is no markup."""
    from rich.console import Console

    return Console(stderr=stderr, quiet=quiet, markup=False, emoji=False)


@dataclass
class Output:
    """Where a command speaks.

    Attributes:
        mode: "human", "json" or "quiet". Quiet prints data in its shortest human form and no notes.
    """

    mode: str = "human"
    _console: Any = field(default=None, repr=False)

    @property
    def console(self) -> Console:
        """The rich console on stderr: tables that are not data, progress bars, notes."""
        if self._console is None:
            self._console = _console(stderr=True, quiet=self.mode == "quiet")
        return self._console

    def data(self, value: Any, render: Callable[[Console], None] | None = None) -> None:
        """Print the command's result on stdout.

        Args:
            value: a JSON-serialisable object, printed whole under `--json`.
            render: draws the human form on a console that writes to stdout and reads no markup; without it `value` is
                printed.
        """
        if self.mode == "json":
            click.echo(json.dumps(plain(value), indent=2, default=str, allow_nan=False))
            return
        if render is None:
            click.echo(value)
        else:
            render(_console())

    def note(self, text: str) -> None:
        """Say something to the person at the terminal (stderr; silent in quiet mode)."""
        if self.mode != "quiet":
            click.echo(text, err=True)

    def hint(self, command: str) -> None:
        """Suggest the next command, with the user's own arguments."""
        if self.mode == "human":
            click.echo(f"next: {command}", err=True)
