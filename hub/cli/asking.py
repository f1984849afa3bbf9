"""Asking the person at the terminal, on stderr: stdout is for data."""

from __future__ import annotations

import sys
from collections.abc import Callable

import click


class Terminal:
    """Asks with click's prompts."""

    @classmethod
    def find(cls) -> Terminal | None:
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
