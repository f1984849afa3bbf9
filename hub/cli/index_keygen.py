"""`tchub index keygen`: a key to sign an index with."""

from __future__ import annotations

import os
from pathlib import Path

import click

from .options import output_options
from .output import Output


@click.command("keygen")
@click.option(
    "--out", "path", type=click.Path(path_type=Path), required=True, metavar="KEYFILE", help="The private key's file."
)
@click.option("--days", type=click.IntRange(1, 3650), default=730, show_default=True, help="How long it is good for.")
@click.option("--passphrase", "ask", is_flag=True, help="Ask for a passphrase to lock it; or set TCHUB_KEY_PASSPHRASE.")
@output_options
def command(path: Path, days: int, ask: bool, out: Output) -> None:
    """Make a private key (KEYFILE, for nobody else to read) and a set of keys with its public half (KEYFILE.pub).

    Keep KEYFILE where nobody else comes. KEYFILE.pub is what clients trust: name it by TCHUB_TRUSTED_KEYS, or add it
    to a set of keys by `tchub index trust`. A file that is there already is never overwritten.

    \b
    Examples:
      tchub index keygen --out release.pem
      tchub index keygen --out release.pem --days 365 --passphrase
    """
    from datetime import timedelta

    from ..registry.key_files import make_key
    from ..registry.signed_file import require_new, write_keys
    from ..registry.trust import KeySet, today

    public = path.with_name(path.name + ".pub")
    require_new(public)  # before there is a private key: what lies there is another key's public half
    passphrase = os.environ.get("TCHUB_KEY_PASSPHRASE")
    if ask and not passphrase:
        passphrase = click.prompt("Passphrase", hide_input=True, confirmation_prompt=True, err=True)
    key = make_key(path, passphrase, today(), today() + timedelta(days=days))
    write_keys(public, KeySet(1, (key,)))
    result = {"private": str(path), "public": str(public), **key.as_dict()}
    out.data(result, lambda console: console.print(key.id, highlight=False))
    out.note(f"private key in {path}; {public} is for clients; good until {key.not_after}")
    out.hint(f"tchub index sign index.json --key {path}")
