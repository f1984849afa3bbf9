"""One output object: data to stdout (human or JSON), everything else to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

import click

from ...zoo.plain_json import plain

if TYPE_CHECKING:
    from rich.console import Console

# Consoles that stand for stderr while a log file has it (native_log.py), innermost last.
_in_place_of_stderr: list[Console] = []


def _console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """A console that shows texts as they are: what a file says in brackets or between colons is no markup."""
    from .terminal import Terminal

    return Terminal(stderr=stderr, quiet=quiet, markup=False, emoji=False)


def say(text: str) -> None:
    """Print a sentence on stderr: wrapped at words on a terminal, as one line for what reads lines."""
    console = _in_place_of_stderr[-1] if _in_place_of_stderr else _console(stderr=True)
    console.print(text, highlight=False)


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

    @contextmanager
    def on(self, stream: IO[str]) -> Iterator[None]:
        """Speak on this stream instead of stderr while inside."""
        console, before = self.console, self.console.file
        console.file = stream
        _in_place_of_stderr.append(console)
        try:
            yield
        finally:
            _in_place_of_stderr.pop()
            console.file = before

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
            say(text)

    def hint(self, command: str, title: str = "next") -> None:
        """Suggest the next command, with the user's own arguments; never broken into lines, since it is copied."""
        if self.mode == "human":
            click.echo(f"{title}: {command}", err=True)


class Prompt:
    """Asks with click's prompts."""

    @classmethod
    def find(cls) -> Prompt | None:
        """The terminal, None where nobody sits at one."""
        return cls() if sys.stdin.isatty() and sys.stderr.isatty() else None

    def text(self, question: str, wrong: Callable[[str], str | None]) -> str:
        """An answer; one that is wrong is said to be, and asked for again. An empty one is an answer too."""

        def checked(answer: str) -> str:
            if why := wrong(answer):
                raise click.UsageError(why)
            return answer

        return click.prompt(question, default="", show_default=False, value_proc=checked, err=True)

    def yes(self, question: str) -> bool:
        """A yes; anything else is a no."""
        return click.confirm(question, default=False, err=True)
