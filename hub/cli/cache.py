"""`tchub cache`: show what was fetched to this machine, and remove what is not needed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from ..text import size_text
from .options import command
from .output import Column, Output, Part

if TYPE_CHECKING:
    from ..registry.cache import CacheItem

_SECONDS = {"h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


def _seconds(_context: click.Context, _parameter: click.Parameter, age: str | None) -> float | None:
    """Return the seconds of `12h`, `30d` or `8w`."""
    if age is not None and not re.fullmatch(r"\d{1,6}[hdw]", age):
        raise click.BadParameter(f"{age!r} is not an age: write 12h, 30d or 8w")
    return None if age is None else int(age[:-1]) * _SECONDS[age[-1]]


@command("cache")
@click.option("--prune", is_flag=True, help="Remove older versions, damaged copies and leftovers of stopped downloads.")
@click.option("--keep", type=click.IntRange(min=0), default=1, help="Newest versions of a name kept.")
@click.option("--unused-for", callback=_seconds, metavar="AGE", help="Remove only what was not used for 12h, 30d, 8w.")
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
    from ..registry import Registry, cache

    store = Registry.default().cache
    if prune:
        removed = cache.prune(store, dry_run=dry_run, **options)
        freed = sum(removal.freed for removal in removed)
        result = {"freed": freed, "dry_run": dry_run, "removed": [removal.as_dict() for removal in removed]}
        output.data(result, f"{'would free' if dry_run else 'freed'} {size_text(freed)}")
        for removal in removed:
            output.note(f"{removal.name}: {size_text(removal.freed)}: {removal.reason}")
        return
    if dry_run or options != {"keep": 1, "unused_for": None, "what": "checkpoints"}:
        raise click.UsageError("these options are for --prune")
    items = cache.contents(store)
    parts = cache.sizes(items)
    total, path = sum(parts.values()), store.root.parent
    result = {"path": str(path), "bytes": total, "by": parts, "items": [item.as_dict() for item in items]}
    output.data(result, _table(items) if items else [])
    output.note(f"{size_text(total)} in {path}" if items else f"nothing is in {path}")
    if items:
        output.hint("tchub cache --prune --dry-run")


def _table(items: Sequence[CacheItem]) -> Iterator[Part]:
    days = ("-" if i.used is None else datetime.fromtimestamp(i.used, UTC).date().isoformat() for i in items)
    yield [
        Column("kind", [item.kind for item in items], leaves=1),
        Column("name", [item.name for item in items]),
        Column("size", [size_text(item.size) for item in items], True),
        Column("last used", list(days), leaves=2),
        Column("state", [item.state for item in items]),
    ]
