"""`tchub cache path`: where the cache is."""

from __future__ import annotations

import click

from .options import output_options
from .output import Output


@click.command("path")
@output_options
def command(out: Output) -> None:
    """Print the folder of the cache; TCHUB_CACHE moves it.

    \b
    Examples:
      tchub cache path
      du -sh "$(tchub cache path)"
    """
    from ..registry import cache_root

    path = cache_root().parent
    out.data({"path": str(path)}, lambda console: console.print(str(path), highlight=False, soft_wrap=True))
