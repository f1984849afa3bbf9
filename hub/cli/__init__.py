"""The command line: one file a group of commands, loaded when called, errors formatted here and nowhere else."""

import json
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from io import TextIOWrapper
from typing import Any

import click

from ...zoo.errors import TchubError, TchubWarning
from ...zoo.tvm_import import import_quickly
from .output import say

# Title in the help -> command -> its module in this folder, which holds it as NAME_command, and its summary. The help
# of all commands imports none of the modules.
SECTIONS = {
    "Most used": {
        "list": ("zoo", "List the checkpoints, with search and filters."),
        "pull": ("zoo", "Fetch checkpoints, verify them, or show which one fits."),
        "adapt": ("adapt", "Adapt a checkpoint to a device from a few measured programs."),
        "tune": ("tune", "Tune a network and compile it."),
        "run": ("tune", "Run or time a tuned network."),
    },
    "Advanced": {
        "quickstart": ("quickstart", "Pull, adapt, tune and compare on a small network."),
        "info": ("zoo", "Show one checkpoint in full, or several side by side."),
        "doctor": ("machine", "Check whether this machine is ready to measure."),
        "devices": ("machine", "List device families and spec sheets; detect this machine."),
        "cache": ("machine", "Show what was fetched, and remove what is not needed."),
        "index": ("index", "Fetch the newest list of checkpoints, show it, or sign one."),
        "site": ("index", "Write the catalogue as web pages."),
        "collect": ("corpus", "Measure a corpus of programs."),
        "corpus": ("corpus", "Import, join and check corpora."),
        "bundle": ("corpus", "Compile programs for a machine without a compiler."),
        "train": ("train", "Train a cost model on corpora."),
        "distill": ("train", "Add devices to a knowledge base."),
        "evaluate": ("train", "Score a checkpoint on a corpus."),
        "check": ("publish", "Check everything that a reviewer looks at."),
        "publish": ("publish", "Publish a checkpoint on the Hugging Face Hub."),
        "contribute": ("publish", "Go from a machine to a published checkpoint."),
    },
}
COMMANDS = {name: module for section in SECTIONS.values() for name, (module, _) in section.items()}
# Those that go on from what is on disk when the same command is given again.
GO_ON = ("adapt", "tune", "quickstart", "collect", "bundle", "publish", "contribute")


class Commands(click.Group):
    """The commands, imported when they run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command, imported now; None when there is none of this name."""
        if cmd_name not in COMMANDS:
            return None
        return getattr(import_module(f".{COMMANDS[cmd_name]}", __package__), f"{cmd_name}_command")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections."""
        widest = max(map(len, COMMANDS))
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(widest), summary) for name, (_, summary) in commands.items()])


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(package_name="tchub")
def cli() -> None:
    """Pretrained cost models for tensor-program tuning.

    \b
    Examples:
      tchub quickstart
      tchub pull tcl-epyc
      tchub adapt tcl-epyc --device local --budget 10% --workload bert-tiny
      tchub tune bert-tiny --checkpoint tcl-epyc+local --out out/

    Exit codes: 0 done; 1 an error with a remedy; 2 wrong usage; 130 interrupted (Ctrl-C, SIGTERM).
    """


@contextmanager
def _own_warnings(*, quiet: bool) -> Iterator[None]:
    """Print tchub's own warnings as sentences; those of libraries go where Python writes them."""
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
    import_quickly()
    if isinstance(sys.stdout, TextIOWrapper):  # a terminal or a pipe may know fewer letters than a card has
        sys.stdout.reconfigure(errors="backslashreplace")
    quiet = "--quiet" in argv
    if quiet:
        os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"  # the Hub's client reads it when a command imports it
    try:
        with _sigterm_as_ctrl_c(), _own_warnings(quiet=quiet):
            return int(cli.main(args=argv, standalone_mode=False, prog_name="tchub") or 0)
    except TchubError as error:
        if "--json" in argv:
            click.echo(json.dumps(error.as_dict(), indent=2, default=str))
        say(f"error: {error.message}")
        if error.remedy:
            say(f"remedy: {error.remedy}")
        return error.exit_code
    except click.exceptions.Abort:
        goes_on = next((word for word in argv if word in COMMANDS), None) in GO_ON
        click.echo("interrupted" + "; run the same command again to go on" * goes_on, err=True)
        return 130
    except click.ClickException as error:
        error.show()
        return error.exit_code
