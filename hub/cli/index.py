"""`tchub index`: the list of checkpoints, who vouches for it, and how a publisher signs it."""

from __future__ import annotations

import click

from .lazy import LazyGroup

# name -> module in this folder; each module holds a click command named `command`.
COMMANDS = {
    "refresh": "index_refresh",
    "show": "index_show",
    "verify": "index_verify",
    "keygen": "index_keygen",
    "sign": "index_sign",
    "trust": "index_trust",
}


@click.group("index", cls=LazyGroup, modules=COMMANDS)
def command() -> None:
    """Fetch a newer list of checkpoints, see which one is used, and sign one as a publisher.

    \b
    Examples:
      tchub index refresh
      tchub index show
      tchub index verify mirror/index.json
      tchub index keygen --out release.pem
      tchub index sign mirror/index.json --key release.pem
    """
