"""`tchub site`: the catalogue of checkpoints as web pages."""

from __future__ import annotations

import click

from .lazy import LazyGroup

# name -> module in this folder; each module holds a click command named `command`.
COMMANDS = {"build": "site_build"}


@click.group("site", cls=LazyGroup, modules=COMMANDS)
def command() -> None:
    """Write a catalogue of the checkpoints as web pages, to look at here or to host.

    \b
    Examples:
      tchub site build --output site
      tchub site build --output site --title "Our cost models" --json
    """
