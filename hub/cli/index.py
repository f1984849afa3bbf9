"""`tchub index` and `tchub site`: the list of checkpoints, its signatures, and its web pages."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..text import Part
from .options import PATH, command, out_option
from .output import Output

if TYPE_CHECKING:
    from ..registry.trust import IndexUpdate


@click.group("index")
def index_command() -> None:
    """Fetch a newer list of checkpoints, see which one is used, and sign one as a publisher.

    \b
    Examples:
      tchub index refresh
      tchub index show
      tchub index sign mirror --key release.pem
    """


@command("refresh", index_command)
@click.option("--source", metavar="S", help="file:///folder, https://host/folder or hf://org/name.")
def index_refresh_command(source: str | None, output: Output) -> None:
    """Fetch the newest list of checkpoints; it counts only when the trusted keys signed it.

    Without --source it comes from where TCHUB_INDEX_SOURCE says, else from the project's repository on the Hub. An
    older list than the one that is here is refused, and one after its last day. Trusted are the keys in the wheel, or
    those of the root.json that TCHUB_TRUSTED_KEYS names.

    \b
    Examples:
      tchub index refresh
      tchub index refresh --source https://mirror.example.org/tchub
    """
    from ..registry.trust import refresh_index

    update = refresh_index(source)
    output.data(update, _update(update))
    if update.unusable:
        output.note(f"the index that was here before could not be used: {update.unusable}")
    output.hint("tchub list")


def _update(update: IndexUpdate) -> Iterator[Part]:
    before = "none" if update.before is None else update.before
    state = "unchanged" if update.before == update.serial else f"was {before}"
    commit = f" at commit {update.commit}" if update.commit else ""
    yield f"serial {update.serial} ({state}) from {update.source}{commit}"
    yield f"signed by the keys of root {update.keys}, good until {update.expires}"
    yield from (f"new: {name}" for name in update.added)
    yield from (f"deprecated: {name}" for name in update.deprecated)


@command("show", index_command)
def index_show_command(output: Output) -> None:
    """Show the index in the wheel, the refreshed one beside it, and the trusted keys.

    A refreshed index that cannot be used any more is an error here; other commands go on without it.

    \b
    Examples:
      tchub index show
    """
    from ..registry.trust import describe_index

    result = describe_index()
    output.data(result, _index(result))
    expires = (result["refreshed"] or {}).get("expires")
    if expires and datetime.fromisoformat(expires) < datetime.now(UTC):
        output.note(f"the refreshed index was to be replaced by {expires}: newer ones may be held back from you")
    output.hint("tchub index refresh")


def _index(result: dict[str, Any]) -> Iterator[Part]:
    """Show a line for each index, the keys and each deprecated checkpoint."""
    for name in ("override", "shipped", "refreshed"):
        if index := result[name]:
            yield f"{name:<11} " + ", ".join(f"{key} {value}" for key, value in index.items() if value is not None)
    if keys := result["keys"]:
        yield f"keys        {', '.join(keys['trusted'])}, of root {keys['version']}, good until {keys['expires']}"
    yield from (f"deprecated  {name}: {reason}" for name, reason in result["deprecated"].items())


@command("sign", index_command)
@click.argument("folder", type=PATH)
@click.option("--key", "keys", type=PATH, multiple=True, required=True, metavar="KEYFILE", help="Private key in PEM.")
@click.option("--trust", type=PATH, multiple=True, metavar="PUBLIC", help="Trust this public key (PEM) from now on.")
@click.option("--revoke", multiple=True, metavar="ID", help="Take a trusted key back. Can be repeated.")
@click.option("--days", type=click.IntRange(1, 3650), default=365, help="Sign anew within so long.")
def index_sign_command(
    folder: Path, keys: tuple[Path, ...], trust: tuple[Path, ...], revoke: tuple[str, ...], days: int, output: Output
) -> None:
    """Sign FOLDER/index.json, as its publisher: write TUF metadata into FOLDER/metadata.

    The first time the keys that sign become the trusted ones, and metadata/1.root.json is what clients name by
    TCHUB_TRUSTED_KEYS. Keys are replaced by --trust and --revoke, signed by a key that clients trust already; never
    take an older root.json away, since clients follow them one by one. A locked key's passphrase is taken from
    TCHUB_KEY_PASSPHRASE, else asked for.

    \b
    Examples:
      (umask 077; openssl genpkey -algorithm ed25519 -out release.pem)
      tchub index sign mirror --key release.pem
      tchub index sign mirror --key release.pem --trust second.pub.pem
    """
    from ..registry.signing import load_public, load_signer, sign_index

    @cache
    def passphrase() -> str:
        return os.environ.get("TCHUB_KEY_PASSPHRASE") or click.prompt("Passphrase", hide_input=True, err=True)

    signers = [load_signer(path, passphrase) for path in keys]
    signed = sign_index(folder, signers, trust=[load_public(path) for path in trust], revoke=revoke, days=days)
    output.data(signed, str(folder / "metadata"))
    output.note(f"serial {signed.serial}, signed state {signed.version}, good until {signed.expires}")
    output.note(f"trusted keys: {', '.join(signed.keys)}, of {signed.root}")
    root = folder / "metadata" / "1.root.json"
    output.hint(f"TCHUB_TRUSTED_KEYS={root} tchub index refresh --source {folder.absolute().as_uri()}")


@command("site")
@out_option("The folder to write: new, empty, or an earlier catalogue.")
@click.option(
    "--source", metavar="file:///FOLDER",
    help="List the checkpoints of a folder laid out as <name>/<version>/, by its own index.json, with its cards.",
)  # fmt: skip
@click.option("--title", metavar="TEXT", help="Title of the pages.")
def site_command(out: Path, source: str | None, title: str | None, output: Output) -> None:
    """Write the published checkpoints as web pages: search, filters, comparison, one page a checkpoint.

    The pages need no server and no network: open DIR/index.html, or put DIR on any web server. Cards and plots are
    those of the checkpoints that are on this machine. The same checkpoints give the same bytes.

    \b
    Examples:
      tchub site --out site
      tchub site --out public --title "Cost models of our cluster" --source file:///mnt/zoo
    """
    from ..registry import Registry
    from ..registry.listing import registry_of
    from ..site.build import TITLE, build

    built = build(registry_of(source) if source else Registry.default(), out, title or TITLE)
    output.data(built, str(built.path / "index.html"))
    number = len(built.checkpoints)
    output.note(f"{number} checkpoints; {built.written} of {built.files} files written, {built.removed} removed")
