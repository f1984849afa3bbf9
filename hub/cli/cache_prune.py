"""`tchub cache prune`: remove what is not needed any more."""

from __future__ import annotations

import re
from typing import Any

import click

from .options import output_options
from .output import Output

_SECONDS = {"h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


class _Age(click.ParamType):
    name = "age"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = re.fullmatch(r"(\d{1,6})([hdw])", str(value))
        if not found:
            self.fail(f"{value!r} is not an age: write 12h, 30d or 8w", param, ctx)
        return int(found[1]) * _SECONDS[found[2]]


@click.command("prune")
@click.option(
    "--keep", type=click.IntRange(min=0), default=1, show_default=True, help="Newest versions of each name to keep."
)
@click.option("--all", "everything", is_flag=True, help="Keep none (the same as --keep 0).")
@click.option("--older-than", type=_Age(), metavar="AGE", help="Remove only what was not used for 12h, 30d, 8w.")
@click.option(
    "--what", type=click.Choice(["checkpoints", "statements", "kernels"]), default="checkpoints",
    show_default=True, help="Fetched checkpoints, or empty another part of the cache.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Say what would be removed, and remove nothing.")
@output_options
def command(keep: int, everything: bool, older_than: float | None, what: str, dry_run: bool, out: Output) -> None:
    """Remove older versions, damaged copies, and what stopped downloads left behind.

    What another process is writing is left alone, and so is every checkpoint that was adapted on this machine. What
    was removed is fetched again when it is needed.

    \b
    Examples:
      tchub cache prune
      tchub cache prune --all --older-than 30d --dry-run
      tchub cache prune --what statements --json
    """
    from ..registry import Registry
    from ..registry.cache import prune
    from ..text import size_text

    store = Registry.default().cache
    removed = prune(store, keep=0 if everything else keep, unused_for=older_than, what=what, dry_run=dry_run)
    freed = sum(gone.freed for gone in removed)
    result = {"freed": freed, "dry_run": dry_run, "removed": [gone.as_dict() for gone in removed]}
    verb = "would free" if dry_run else "freed"
    out.data(result, lambda console: console.print(f"{verb} {size_text(freed)}", highlight=False))
    for gone in removed:
        out.note(f"{gone.item.name}: {size_text(gone.freed)}: {gone.reason}")
