"""`tchub index sign`: vouch for an index, or for a set of keys."""

from __future__ import annotations

import os
from pathlib import Path

import click

from .options import output_options
from .output import Output


@click.command("sign")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--key", "keyfile", type=click.Path(path_type=Path), required=True, metavar="KEYFILE", help="Your key.")
@output_options
def command(path: Path, keyfile: Path, out: Output) -> None:
    """Write PATH.sig, the signature of an index.json or of a set of keys; what clients could not read is refused.

    A locked key's passphrase is taken from TCHUB_KEY_PASSPHRASE, else asked for.

    \b
    Examples:
      tchub index sign mirror/index.json --key release.pem
      tchub index sign mirror/keys-2.json --key release.pem --json
    """
    from ..registry.key_files import is_locked, load_key
    from ..registry.signed_file import sign_file, signature_path

    passphrase = os.environ.get("TCHUB_KEY_PASSPHRASE")
    if is_locked(keyfile) and not passphrase:
        passphrase = click.prompt("Passphrase", hide_input=True, err=True)
    made, content = sign_file(path, load_key(keyfile, passphrase))
    signature = signature_path(path)
    result = {"path": str(path), "signature": str(signature), "key": made.key, "serial": content.serial}
    out.data(result, lambda console: console.print(str(signature), highlight=False, markup=False))
    out.note(f"serial {content.serial} signed by key {made.key}")
    out.hint(f"tchub index verify {path}")
