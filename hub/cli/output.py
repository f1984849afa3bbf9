"""One output object: data to stdout (human or JSON), everything else to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import IO, TYPE_CHECKING, Any

import click

from ...zoo.plain_json import plain
from ..text import Part

if TYPE_CHECKING:
    from .terminal import Terminal


# Consoles that stand for stderr while a log file has it (native_log.py), innermost last.
_in_place_of_stderr: list[Terminal] = []


def _terminal(*, stderr: bool = False, quiet: bool = False) -> Terminal:
    """Return a console that shows texts as they are: brackets and colons of a file are no markup."""
    from .terminal import Terminal

    return Terminal(stderr=stderr, quiet=quiet, markup=False, emoji=False, highlight=False)


def say(text: str) -> None:
    """Print a sentence on stderr: wrapped at words on a terminal, as one line for what reads lines."""
    console = _in_place_of_stderr[-1] if _in_place_of_stderr else _terminal(stderr=True)
    console.print(text)


@dataclass
class Output:
    """Where a command prints.

    Attributes:
        mode: "human", "json" or "quiet". Quiet prints data in its shortest human form and no notes.
    """

    mode: str = "human"

    @cached_property
    def console(self) -> Terminal:
        """The console on stderr: displays of progress and notes."""
        return _terminal(stderr=True, quiet=self.mode == "quiet")

    @contextmanager
    def on(self, stream: IO[str]) -> Iterator[None]:
        """Print on this stream instead of stderr while inside."""
        console, before = self.console, self.console.file
        console.file = stream
        _in_place_of_stderr.append(console)
        try:
            yield
        finally:
            _in_place_of_stderr.pop()
            console.file = before

    def data(self, value: Any, human: str | Iterable[Part]) -> None:
        """Print the command's result on stdout.

        Args:
            value: a JSON-serialisable object, printed whole under `--json`.
            human: the text for people, or its parts, which are not made under `--json`.
        """
        if self.mode == "json":
            click.echo(json.dumps(plain(value), indent=2, default=str, allow_nan=False))
            return
        console = _terminal()
        for part in [human] if isinstance(human, str) else human:
            console.show(part)

    def note(self, text: str) -> None:
        """Print a note for the person at the terminal (stderr; silent in quiet mode)."""
        if self.mode != "quiet":
            say(text)

    def hint(self, command: str, title: str = "next") -> None:
        """Suggest the next command, with the user's own arguments; never broken into lines, since it is copied."""
        if self.mode == "human":
            click.echo(f"{title}: {command}", err=True)


class Prompt:
    """Questions to the person at the terminal, on stderr: stdout is for data."""

    @classmethod
    def find(cls) -> Prompt | None:
        """Return the prompt; None where nobody sits at a terminal."""
        return cls() if sys.stdin.isatty() and sys.stderr.isatty() else None

    def text(self, question: str, wrong: Callable[[str], str | None]) -> str:
        """Prompt until the answer is valid, as `wrong` says; it may be empty."""

        def checked(answer: str) -> str:
            if why := wrong(answer):
                raise click.UsageError(why)
            return answer

        return click.prompt(question, default="", show_default=False, value_proc=checked, err=True)

    def yes(self, question: str) -> bool:
        """Return the answer to a yes-or-no question; anything else than a yes is a no."""
        return click.confirm(question, default=False, err=True)
