"""`tchub cache size`: how much disk the cache takes."""

from __future__ import annotations

import click

from .options import output_options
from .output import Output


@click.command("size")
@output_options
def command(out: Output) -> None:
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
