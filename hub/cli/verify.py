"""`tchub verify`: are a checkpoint's files what the index says?"""

from __future__ import annotations

import click

from .options import output_options
from .output import Output


@click.command("verify")
@click.argument("name")
@output_options
def command(name: str, out: Output) -> None:
    """Check size and sha256 of a checkpoint's files on this machine.

    The outcome is one of: ok, not-installed, missing-file, not-a-file, unreadable, size-mismatch,
    hash-mismatch. Exit code 0 for ok, 1 for any other.

    \b
    Examples:
      tchub verify tcl-epyc
      tchub verify tcl-epyc+local --json
    """
    from ..api import verify

    entry, found, where = verify(name)
    result = {
        "name": entry.name,
        "version": entry.version,
        "outcome": found.outcome.value,
        "copy": where,
        "path": str(found.path),
        "expected": found.expected,
        "actual": found.actual,
    }
    out.data(result, lambda console: console.print(f"{found.outcome.value} {entry.id}", highlight=False))
    if found.ok:
        out.note(f"{len(entry.files)} files checked in {found.path}")
        return
    out.note(found.message)
    out.hint(f"tchub pull {entry.id}")
    raise click.exceptions.Exit(1)
