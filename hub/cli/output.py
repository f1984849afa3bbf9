"""One output object: data to stdout (human or JSON), everything else to stderr; what native code writes to a log."""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from ...zoo.plain_json import plain
from ..text import Part

if TYPE_CHECKING:
    from .terminal import Terminal

LOG_NAME = "tvm.log"
# An earlier log that has outgrown this is begun anew.
MOST_BYTES = 8 << 20
_WARNING = re.compile(rb"warning:", re.IGNORECASE)
# Consoles that stand for stderr while a log file has it, innermost last.
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


# What TVM, torch and other libraries write on stdout and stderr while tchub shows its progress -----------------


@contextmanager
def native_output_logged(output: Output, folder: str | Path) -> Iterator[None]:
    """Send file descriptors 1 and 2 into `folder/tvm.log` while inside; `output` keeps the terminal.

    Child processes inherit the log. At the end one line counts the warnings. Where native code crashes inside, the
    terminal gets the stack. Nothing changes where the folder cannot be written: the command itself reports it.
    """
    path = Path(folder) / LOG_NAME
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file() and path.stat().st_size > MOST_BYTES:
            path.unlink()
        log = path.open("a+b", buffering=0)
    except OSError:
        yield
        return
    with log, _real_stderr() as screen:
        start = os.fstat(log.fileno()).st_size
        saved = {descriptor: os.dup(descriptor) for descriptor in (1, 2)}
        _flush()
        try:
            with output.on(screen):
                for descriptor in saved:
                    os.dup2(log.fileno(), descriptor)
                yield
        finally:
            _flush()
            for descriptor, copy in saved.items():
                os.dup2(copy, descriptor)
                os.close(copy)
            size = os.fstat(log.fileno()).st_size
            if not size:
                path.unlink(missing_ok=True)
            if warnings := len(_WARNING.findall(os.pread(log.fileno(), size - start, start))):
                output.note(f"{warnings:,} warning{'s' * (warnings > 1)} in {path}")


@contextmanager
def _real_stderr() -> Iterator[IO[str]]:
    """Yield a stream to the present stderr, which stays there when descriptor 2 goes elsewhere."""
    if sys.stderr is not sys.__stderr__:  # somebody replaced it, e.g. a notebook
        yield sys.stderr
        return
    sys.stderr.flush()
    encoding = sys.stderr.encoding
    with os.fdopen(os.dup(2), "w", encoding=encoding, errors="backslashreplace", buffering=1) as stream:
        faulthandler.enable(stream)
        try:
            yield stream
        finally:
            faulthandler.disable()


def _flush() -> None:
    """Empty the buffers of Python and of C, so that each text goes where it was meant to."""
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)
