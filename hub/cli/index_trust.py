"""`tchub index trust`: the next set of keys, for handing on trust."""

from __future__ import annotations

from pathlib import Path

import click

from .options import output_options
from .output import Output

_PATH = click.Path(path_type=Path)


@click.command("trust")
@click.argument("keys", type=_PATH)
@click.option("--add", "added", type=_PATH, metavar="PUBLIC", help="Trust the keys of this file too (KEYFILE.pub).")
@click.option("--revoke", "revoked", multiple=True, metavar="ID", help="Take this key back. Can be repeated.")
@click.option("--reason", metavar="TEXT", help="Why, for those who meet a signature of that key.")
@click.option("--out", "folder", type=_PATH, default=Path(), metavar="DIR", help="Where keys-N.json goes; here.")
@output_options
def command(
    keys: Path, added: Path | None, revoked: tuple[str, ...], reason: str | None, folder: Path, out: Output
) -> None:
    """Write the set of keys that follows on KEYS, as a new file keys-N.json.

    Sign it by a key that KEYS trusts and that is not taken back, and put both files beside the index, where every
    refresh finds them. Never take an older keys-N.json away: clients follow them one by one.

    \b
    Examples:
      tchub index trust keys.json --add release2.pem.pub --out mirror
      tchub index trust mirror/keys-2.json --revoke 0f3a9c51d2e47b68 --reason "laptop stolen" --out mirror
    """
    from ..registry.rotation import link_name, successor
    from ..registry.signed_file import read_keys, write_keys
    from ..registry.trust import KeySet, today

    if added is None and not revoked:
        raise click.UsageError("nothing to change: give --add or --revoke")
    if bool(revoked) != bool(reason):
        raise click.UsageError("--revoke and --reason go together")
    following = successor(read_keys(keys), read_keys(added) if added else KeySet(), revoked, reason or "", today())
    path = folder / link_name(following.serial)
    write_keys(path, following)
    result = {"path": str(path), "serial": following.serial, "keys": [key.as_dict() for key in following.keys]}
    out.data(result, lambda console: console.print(str(path), highlight=False, markup=False))
    good = sum(key.revoked is None for key in following.keys)
    out.note(f"keys trusted: {good}, taken back: {len(following.keys) - good}")
    out.hint(f"tchub index sign {path} --key KEYFILE")
