"""`tchub cache`: show what was fetched to this machine, and remove what is not needed."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from .options import output_options
from .output import Output

if TYPE_CHECKING:
    from rich.console import Console

    from ..registry.cache import Item


@click.group("cache")
def cache_command() -> None:
    """Look at the cache of fetched checkpoints, and remove what is not needed.

    Checkpoints that were adapted on this machine are no cache, and are never touched (`tchub list --local`).

    \b
    Examples:
      tchub cache list
      tchub cache size --quiet
      tchub cache prune --keep 1 --older-than 30d --dry-run
      tchub cache path
    """


@cache_command.command("list")
@output_options
def cache_list_command(out: Output) -> None:
    """List what the cache holds: size, when it was last used, and whether it is whole (sha256).

    The last use is when a file's reading was last noted: many file systems note it once a day, some never.

    \b
    Examples:
      tchub cache list
      tchub cache list --json
    """
    from ..registry import Registry
    from ..registry.cache import contents
    from ..text import size_text

    store = Registry.default().cache
    items = contents(store)
    out.data([item.as_dict() for item in items], lambda console: _draw(items, console))
    if items:
        out.note(f"{size_text(sum(item.size for item in items))} in {store.root.parent}")
        out.hint("tchub cache prune --dry-run")
    else:
        out.note(f"nothing is in {store.root.parent}")


def _draw(items: list[Item], console: Console) -> None:
    from rich.table import Table

    from ..text import size_text

    table = Table(box=None, pad_edge=False)
    for title in ("what", "name", "size", "last used", "state"):
        table.add_column(title, justify="right" if title == "size" else "left", no_wrap=True)
    for item in items:
        day = "-" if item.used is None else datetime.fromtimestamp(item.used, UTC).date().isoformat()
        table.add_row(item.what, item.name, size_text(item.size), day, item.state)
    console.print(table)


@cache_command.command("size")
@output_options
def cache_size_command(out: Output) -> None:
    """Say how many bytes the cache takes, and for what.

    \b
    Examples:
      tchub cache size
      tchub cache size --json
    """
    from ..registry import Registry
    from ..registry.cache import sizes
    from ..text import size_text

    store = Registry.default().cache
    found = sizes(store)
    whole = sum(found.values())
    result = {"path": str(store.root.parent), "bytes": whole, "by": found}
    out.data(result, lambda console: console.print(size_text(whole), highlight=False))
    for what, size in found.items():
        out.note(f"{what}: {size_text(size)}")


_SECONDS = {"h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


class _Age(click.ParamType):
    name = "age"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = re.fullmatch(r"(\d{1,6})([hdw])", str(value))
        if not found:
            self.fail(f"{value!r} is not an age: write 12h, 30d or 8w", param, ctx)
        return int(found[1]) * _SECONDS[found[2]]


@cache_command.command("prune")
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
def cache_prune_command(
    keep: int, everything: bool, older_than: float | None, what: str, dry_run: bool, out: Output
) -> None:
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


@cache_command.command("path")
@output_options
def cache_path_command(out: Output) -> None:
    """Print the folder of the cache; TCHUB_CACHE moves it.

    \b
    Examples:
      tchub cache path
      du -sh "$(tchub cache path)"
    """
    from ..registry import cache_root

    path = cache_root().parent
    out.data({"path": str(path)}, lambda console: console.print(str(path), highlight=False, soft_wrap=True))
