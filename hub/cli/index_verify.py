"""`tchub index verify`: did a trusted key sign this file?"""

from __future__ import annotations

from pathlib import Path

import click

from .options import output_options
from .output import Output


@click.command("verify")
@click.argument("path", type=click.Path(path_type=Path))
@output_options
def command(path: Path, out: Output) -> None:
    """Check an index.json, or a set of keys, against the signature beside it (PATH.sig).

    Trusted are the keys of the last refresh, else those in the wheel or in the file that TCHUB_TRUSTED_KEYS names.
    Exit code 1 and the reason when the file is not vouched for.

    \b
    Examples:
      tchub index verify mirror/index.json
      TCHUB_TRUSTED_KEYS=keys.json tchub index verify mirror/keys-2.json --json
    """
    from ..registry.key_chain import index_folder, trusted_keys
    from ..registry.signed_file import check_file
    from ..registry.trust import today

    key, content = check_file(path, trusted_keys(index_folder()), today())
    result = {"path": str(path), "outcome": "ok", "key": key.id, "serial": content.serial}
    out.data(result, lambda console: console.print(f"ok {path}", highlight=False, markup=False))
    out.note(f"serial {content.serial}, signed by key {key.id}, which is good until {key.not_after}")
