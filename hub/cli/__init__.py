"""The command line: one file a command, loaded when called, errors formatted here and nowhere else."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from typing import Any

import click

from ...zoo.errors import TchubError, TchubWarning
from .lazy import LazyGroup
from .output import say

# Command -> its module in this folder, which holds it as `NAME_command`.
COMMANDS = {
    "list": "zoo",
    "info": "zoo",
    "resolve": "zoo",
    "pull": "zoo",
    "verify": "zoo",
    "cache": "cache",
    "index": "index",
    "site": "index",
    "adapt": "adapt",
    "tune": "tune",
    "run": "tune",
    "bench": "tune",
    "quickstart": "tune",
    "collect": "corpus",
    "corpus": "corpus",
    "bundle": "corpus",
    "train": "train",
    "distill": "train",
    "evaluate": "train",
    "check": "publish",
    "publish": "publish",
    "contribute": "publish",
    "doctor": "machine",
    "devices": "machine",
}
# Those that go on from what is on disk when the same command is given again.
GO_ON = ("adapt", "tune", "quickstart", "collect", "bundle", "publish", "contribute")
# The first command of each section of `tchub --help` -> its title.
SECTIONS = {
    "list": "The zoo",
    "adapt": "Adapt and tune",
    "collect": "Make a checkpoint",
    "check": "Give to others",
    "doctor": "This machine",
}


@click.group(
    cls=LazyGroup, modules=COMMANDS, sections=SECTIONS, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(package_name="tchub")
def cli() -> None:
    """Pretrained cost models for tensor-program tuning.

    \b
    Examples:
      tchub list
      tchub pull tcl-epyc
      tchub adapt tcl-epyc --device local --budget 10% --workload bert-tiny
      tchub tune bert-tiny --checkpoint tcl-epyc+local --trials 128 --output out/

    Exit codes: 0 done; 1 an error with a remedy; 2 wrong usage; 130 interrupted (Ctrl-C, SIGTERM).
    """


def _report(error: TchubError, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(error.as_dict(), indent=2, default=str))
    say(f"error: {error.message}")
    if error.remedy:
        say(f"remedy: {error.remedy}")


@contextmanager
def _warnings_in_words(*, quiet: bool) -> Iterator[None]:
    """Say tchub's own warnings as a person would; those of libraries go where Python writes them."""
    with warnings.catch_warnings():
        shown = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if not issubclass(category, TchubWarning):
                shown(message, category, *where, **more)
            elif not quiet:
                say(f"warning: {message}")

        warnings.showwarning = show
        yield


@contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    """End on SIGTERM in the same order: workers end, temporary folders go, journals are closed.

    A handler of somebody else's stays. What is started meanwhile does not inherit this one: it is another program.
    """
    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if ours:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def main(args: list[str] | None = None) -> int:
    """Run the command line; returns the exit code (the console script passes it to `sys.exit`)."""
    argv = sys.argv[1:] if args is None else args
    if isinstance(sys.stdout, TextIOWrapper):  # a terminal or a pipe may know fewer letters than a card has
        sys.stdout.reconfigure(errors="backslashreplace")
    quiet = "--quiet" in argv
    if quiet:
        os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"  # the Hub's client reads it when a command imports it
    try:
        with _sigterm_as_ctrl_c(), _warnings_in_words(quiet=quiet):
            return int(cli.main(args=argv, standalone_mode=False, prog_name="tchub") or 0)
    except TchubError as error:
        _report(error, "--json" in argv)
        return error.exit_code
    except click.exceptions.Abort:
        goes_on = next((word for word in argv if word in COMMANDS), None) in GO_ON
        click.echo("interrupted" + "; run the same command again to go on" * goes_on, err=True)
        return 130
    except click.ClickException as error:
        error.show()
        return error.exit_code
