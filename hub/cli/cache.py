"""`tchub cache`: what has been fetched to this machine, and what of it can go."""

from __future__ import annotations

import click

from .lazy import LazyGroup

# name -> module in this folder; each module holds a click command named `command`.
COMMANDS = {"list": "cache_list", "size": "cache_size", "prune": "cache_prune", "path": "cache_path"}


@click.group("cache", cls=LazyGroup, modules=COMMANDS)
def command() -> None:
    """Look at the cache of fetched checkpoints, and remove what is not needed.

    Checkpoints that were adapted on this machine are no cache, and are never touched (`tchub list --local`).

    \b
    Examples:
      tchub cache list
      tchub cache size --quiet
      tchub cache prune --keep 1 --older-than 30d --dry-run
      tchub cache path
    """
