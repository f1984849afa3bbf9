"""`tchub cache`: show what was fetched to this machine, and remove what is not needed."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from .options import command
from .output import Output

if TYPE_CHECKING:
    from ..registry.store import Store
    from .terminal import Terminal

_SECONDS = {"h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


class Age(click.ParamType):
    """A duration as `12h`, `30d` or `8w`, in seconds."""

    name = "age"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds."""
        match = re.fullmatch(r"(\d{1,6})([hdw])", str(value))
        if not match:
            self.fail(f"{value!r} is not an age: write 12h, 30d or 8w", param, ctx)
        return int(match[1]) * _SECONDS[match[2]]


@command("cache")
@click.option("--prune", is_flag=True, help="Remove older versions, damaged copies and leftovers of stopped downloads.")
@click.option("--keep", type=click.IntRange(min=0), default=1, help="Newest versions of a name kept.")
@click.option("--unused-for", type=Age(), metavar="AGE", help="Remove only what was not used for 12h, 30d, 8w.")
@click.option(
    "--what", type=click.Choice(["checkpoints", "statements"]), default="checkpoints",
    help="Prune fetched checkpoints, or empty another part of the cache.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Show what --prune would remove, and remove nothing.")
def cache_command(prune: bool, dry_run: bool, output: Output, **options: Any) -> None:
    """Show what the cache holds: size, last use, and whether it is whole (sha256); or remove what is not needed.

    Checkpoints that were adapted on this machine are no cache, and are never touched (`tchub list --local`). What
    another process is writing is left alone. What was removed is fetched again when it is needed. TCHUB_CACHE moves the
    cache. The last use is as exact as the file system notes it.

    \b
    Examples:
      tchub cache
      tchub cache --prune --dry-run
      tchub cache --prune --keep 0 --unused-for 30d
      tchub cache --prune --what statements --json
    """
    from ..registry import Registry

    store = Registry.default().cache
    if prune:
        _prune(store, dry_run, output, options)
    elif dry_run or options != {"keep": 1, "unused_for": None, "what": "checkpoints"}:
        raise click.UsageError("these options are for --prune")
    else:
        _show(store, output)


def _show(store: Store, output: Output) -> None:
    from ..registry.cache import contents, sizes
    from ..text import size_text

    items = contents(store)
    parts = sizes(items)
    total, path = sum(parts.values()), store.root.parent
    result = {"path": str(path), "bytes": total, "by": parts, "items": [item.as_dict() for item in items]}

    def draw(console: Terminal) -> None:
        from .terminal import Column

        days = ("-" if i.used is None else datetime.fromtimestamp(i.used, UTC).date().isoformat() for i in items)
        console.table(
            Column("kind", [item.kind for item in items], leaves=1),
            Column("name", [item.name for item in items]),
            Column("size", [size_text(item.size) for item in items], True),
            Column("last used", list(days), leaves=2),
            Column("state", [item.state for item in items]),
        )

    output.data(result, draw if items else "")
    output.note(f"{size_text(total)} in {path}" if items else f"nothing is in {path}")
    if items:
        output.hint("tchub cache --prune --dry-run")


def _prune(store: Store, dry_run: bool, output: Output, options: dict[str, Any]) -> None:
    from ..registry.cache import prune
    from ..text import size_text

    removed = prune(store, dry_run=dry_run, **options)
    freed = sum(removal.freed for removal in removed)
    result = {"freed": freed, "dry_run": dry_run, "removed": [removal.as_dict() for removal in removed]}
    output.data(result, f"{'would free' if dry_run else 'freed'} {size_text(freed)}")
    for removal in removed:
        output.note(f"{removal.name}: {size_text(removal.freed)}: {removal.reason}")
