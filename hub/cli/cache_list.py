"""`tchub cache list`: everything in the cache."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from .options import output_options
from .output import Output

if TYPE_CHECKING:
    from rich.console import Console

    from ..registry.cache import Item


@click.command("list")
@output_options
def command(out: Output) -> None:
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
