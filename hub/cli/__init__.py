"""The command line: one file a command, loaded when called, errors formatted here and nowhere else."""

from __future__ import annotations

import json
import sys

import click

from ...zoo.errors import TchubError
from .lazy import LazyGroup

# name -> module in this folder; each module holds a click command named `command`.
COMMANDS = {
    "list": "list",
    "info": "info",
    "pull": "pull",
    "verify": "verify",
    "devices": "devices",
    "doctor": "doctor",
    "collect": "collect",
    "corpus": "corpus",
    "bundle": "bundle",
    "train": "train",
    "evaluate": "evaluate",
    "distill": "distill",
    "adapt": "adapt",
    "tune": "tune",
    "quickstart": "quickstart",
}


@click.group(cls=LazyGroup, modules=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tchub")
def cli() -> None:
    """Pretrained cost models for tensor-program tuning.

    \b
    Examples:
      tchub list
      tchub pull tcl-epyc
      tchub adapt tcl-epyc --device local --budget 10% --workload bert-tiny
      tchub tune bert-tiny --checkpoint tcl-epyc+local --trials 128 --output out/

    Exit codes: 0 done; 1 an error with a remedy; 2 wrong usage; 130 interrupted.
    """


def _report(error: TchubError, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(error.as_dict(), indent=2, default=str))
    click.echo(f"error: {error.message}", err=True)
    if error.remedy:
        click.echo(f"remedy: {error.remedy}", err=True)


def main(args: list[str] | None = None) -> int:
    """Run the command line; returns the exit code (the console script passes it to `sys.exit`)."""
    argv = sys.argv[1:] if args is None else args
    try:
        return int(cli.main(args=argv, standalone_mode=False, prog_name="tchub") or 0)
    except TchubError as error:
        _report(error, "--json" in argv)
        return error.exit_code
    except click.exceptions.Abort:
        click.echo("interrupted", err=True)
        return 130
    except click.ClickException as error:
        error.show()
        return error.exit_code
