"""`tchub index refresh`: fetch the newest index, check its signature, keep it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .options import output_options
from .output import Output

if TYPE_CHECKING:
    from rich.console import Console

    from ..registry.refresh import Refreshed


@click.command("refresh")
@click.option("--source", metavar="S", help="file:///folder, https://host/folder or hf://org/name.")
@output_options
def command(source: str | None, out: Output) -> None:
    """Fetch the newest list of checkpoints; it counts only when a trusted key signed it.

    Without --source it comes from where TCHUB_INDEX_SOURCE says, else from the project's repository on the Hub. An
    older index than the one that is here is refused. Trusted are the keys in the wheel, or those of the file that
    TCHUB_TRUSTED_KEYS names.

    \b
    Examples:
      tchub index refresh
      tchub index refresh --source https://mirror.example.org/tchub
      tchub index refresh --source file:///mnt/zoo --json
    """
    from ..api import refresh_index

    found = refresh_index(source)
    out.data(found.as_dict(), lambda console: draw(found, console))
    if found.unusable:
        out.note(f"the index that was here before could not be used: {found.unusable}")
    out.hint("tchub list")


def draw(found: Refreshed, console: Console) -> None:
    """One line, then what is new."""
    state = "unchanged" if found.before == found.serial else f"was {'none' if found.before is None else found.before}"
    where = f" at commit {found.commit} of {found.date}" if found.commit else ""
    console.print(f"serial {found.serial} ({state}) from {found.source}{where}", highlight=False, markup=False)
    console.print(f"signed by key {found.key}, trusted by the set of keys {found.keys}", highlight=False)
    for title, names in (("new", found.added), ("deprecated", found.deprecated)):
        for name in names:
            console.print(f"{title}: {name}", highlight=False)
