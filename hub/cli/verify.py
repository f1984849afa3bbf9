"""`tchub verify`: are a checkpoint's files what the index says?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import output_options
from .output import Output

if TYPE_CHECKING:
    from rich.console import Console

    from ..registry import Entry, Verification


@click.command("verify")
@click.argument("name", required=False)
@click.option("--all", "everything", is_flag=True, help="Every checkpoint on this machine.")
@click.option(
    "--lock-file", type=click.Path(dir_okay=False, path_type=Path), metavar="PATH",
    help="Check against what this lock file pins; without a NAME, all of it.",
)  # fmt: skip
@output_options
def command(name: str | None, everything: bool, lock_file: Path | None, out: Output) -> None:
    """Check size and sha256 of a checkpoint's files on this machine.

    The outcome is one of: ok, not-installed, missing-file, not-a-file, unreadable, size-mismatch,
    hash-mismatch. Exit code 0 for ok, 1 for any other, also of one among several.

    \b
    Examples:
      tchub verify tcl-epyc
      tchub verify tcl-epyc+local --json
      tchub verify --all
      tchub verify --lock-file tchub.lock
    """
    from ..api import verify, verify_all

    if (everything and (name or lock_file)) or not (everything or name or lock_file):
        raise click.UsageError("give a NAME, or --all, or --lock-file PATH with or without a NAME")
    checked = [verify(name, lock=lock_file)] if name else verify_all(lock=lock_file)
    results = [_result(*one) for one in checked]
    out.data(results[0] if name else results, lambda console: _draw(checked, console))
    for entry, found, _ in checked:
        out.note(f"{len(entry.files)} files checked in {found.path}" if found.ok else found.message)
    bad = [entry for entry, found, _ in checked if not found.ok]
    if bad:
        names = " ".join(entry.id for entry in bad)
        out.hint(f"tchub pull --frozen --lock-file {lock_file}" if lock_file else f"tchub pull {names}")
        raise click.exceptions.Exit(1)


def _result(entry: Entry, found: Verification, where: str) -> dict[str, Any]:
    return {
        "name": entry.name,
        "version": entry.version,
        "outcome": found.outcome.value,
        "copy": where,
        "path": str(found.path),
        "expected": found.expected,
        "actual": found.actual,
    }


def _draw(checked: list[tuple[Entry, Verification, str]], console: Console) -> None:
    for entry, found, _ in checked:
        console.print(f"{found.outcome.value} {entry.id}", highlight=False)
