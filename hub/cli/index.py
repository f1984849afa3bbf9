"""`tchub index` and `tchub site`: the list of checkpoints, its signatures, and its web pages."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import output_options
from .output import Output

if TYPE_CHECKING:
    from rich.console import Console

    from ..registry.refresh import Refreshed


@click.group("index")
def index_command() -> None:
    """Fetch a newer list of checkpoints, see which one is used, and sign one as a publisher.

    \b
    Examples:
      tchub index refresh
      tchub index show
      tchub index verify mirror/index.json
      tchub index keygen --out release.pem
      tchub index sign mirror/index.json --key release.pem
    """


@index_command.command("refresh")
@click.option("--source", metavar="S", help="file:///folder, https://host/folder or hf://org/name.")
@output_options
def index_refresh_command(source: str | None, out: Output) -> None:
    """Fetch the newest list of checkpoints; it counts only when a trusted key signed it.

    Without --source it comes from where TCHUB_INDEX_SOURCE says, else from the project's repository on the Hub. An
    older index than the one that is here is refused. Trusted are the keys in the wheel, or those of the file that
    TCHUB_TRUSTED_KEYS names.

    \b
    Examples:
      tchub index refresh
      tchub index refresh --source https://mirror.example.org/tchub
      tchub index refresh --source file:///mnt/zoo --json
    """
    from ..api import refresh_index

    found = refresh_index(source)
    out.data(found.as_dict(), lambda console: draw_index_refresh(found, console))
    if found.unusable:
        out.note(f"the index that was here before could not be used: {found.unusable}")
    out.hint("tchub list")


def draw_index_refresh(found: Refreshed, console: Console) -> None:
    """One line, then what is new."""
    state = "unchanged" if found.before == found.serial else f"was {'none' if found.before is None else found.before}"
    where = f" at commit {found.commit} of {found.date}" if found.commit else ""
    console.print(f"serial {found.serial} ({state}) from {found.source}{where}", highlight=False, markup=False)
    console.print(f"signed by key {found.key}, trusted by the set of keys {found.keys}", highlight=False)
    for title, names in (("new", found.added), ("deprecated", found.deprecated)):
        for name in names:
            console.print(f"{title}: {name}", highlight=False)


@index_command.command("show")
@output_options
def index_show_command(out: Output) -> None:
    """Show the index in the wheel, the refreshed one beside it, the trusted keys and the old names.

    A refreshed index that cannot be used any more is an error here; other commands go on without it.

    \b
    Examples:
      tchub index show
      tchub index show --json
    """
    from ..api import describe_index
    from ..registry.trust import today

    result = describe_index()
    out.data(result, lambda console: draw_index_show(result, console))
    expires = (result["refreshed"] or {}).get("expires")
    if expires and expires < today().isoformat():
        out.note(f"the refreshed index was to be replaced by {expires}: newer ones may be held back from you")
    out.hint("tchub index refresh")


def draw_index_show(found: dict[str, Any], console: Console) -> None:
    """A line for each index, key, old name and deprecated checkpoint."""

    def line(title: str, text: str) -> None:
        console.print(f"{title:<11} {text}", highlight=False, soft_wrap=True)

    for name in ("override", "shipped", "refreshed"):
        if index := found[name]:
            line(name, ", ".join(f"{key} {value}" for key, value in index.items() if value is not None))
    for key in found["keys"]["trusted"]:
        state = "taken back" if key["revoked"] else f"good from {key['not_before']} to {key['not_after']}"
        line("key", f"{key['id']}, {state}")
    for old, new in found["aliases"].items():
        line("old name", f"{old} is called {new} now")
    for name, reason in found["deprecated"].items():
        line("deprecated", f"{name}: {reason}")


@index_command.command("verify")
@click.argument("path", type=click.Path(path_type=Path))
@output_options
def index_verify_command(path: Path, out: Output) -> None:
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


@index_command.command("keygen")
@click.option(
    "--out", "path", type=click.Path(path_type=Path), required=True, metavar="KEYFILE", help="The private key's file."
)
@click.option("--days", type=click.IntRange(1, 3650), default=730, show_default=True, help="How long it is good for.")
@click.option("--passphrase", "ask", is_flag=True, help="Ask for a passphrase to lock it; or set TCHUB_KEY_PASSPHRASE.")
@output_options
def index_keygen_command(path: Path, days: int, ask: bool, out: Output) -> None:
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


@index_command.command("sign")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--key", "keyfile", type=click.Path(path_type=Path), required=True, metavar="KEYFILE", help="Your key.")
@output_options
def index_sign_command(path: Path, keyfile: Path, out: Output) -> None:
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


_PATH: Any = click.Path(path_type=Path)


@index_command.command("trust")
@click.argument("keys", type=_PATH)
@click.option("--add", "added", type=_PATH, metavar="PUBLIC", help="Trust the keys of this file too (KEYFILE.pub).")
@click.option("--revoke", "revoked", multiple=True, metavar="ID", help="Take this key back. Can be repeated.")
@click.option("--reason", metavar="TEXT", help="Why, for those who meet a signature of that key.")
@click.option("--out", "folder", type=_PATH, default=Path(), metavar="DIR", help="Where keys-N.json goes; here.")
@output_options
def index_trust_command(
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


@click.group("site")
def site_command() -> None:
    """Write a catalogue of the checkpoints as web pages, to look at here or to host.

    \b
    Examples:
      tchub site build --output site
      tchub site build --output site --title "Our cost models" --json
    """


@site_command.command("build")
@click.option(
    "--output", required=True, metavar="DIR", type=click.Path(path_type=Path, file_okay=False),
    help="The folder to write: new, empty, or an earlier catalogue.",
)  # fmt: skip
@click.option(
    "--index", metavar="FILE", type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="List the checkpoints of this index.json. Default: those of `tchub list`.",
)  # fmt: skip
@click.option(
    "--source", metavar="file:///FOLDER",
    help="List the checkpoints of a folder laid out as <name>/<version>/, by its own index.json, with its cards.",
)  # fmt: skip
@click.option("--title", metavar="TEXT", help="What the pages are called.")
@output_options
def site_build_command(output: Path, index: Path | None, source: str | None, title: str | None, out: Output) -> None:
    """Write the published checkpoints as web pages: search, filters, comparison, one page a checkpoint.

    The pages need no server and no network: open DIR/index.html, or put DIR on any web server. Cards and plots are
    those of the checkpoints that are on this machine. The same checkpoints give the same bytes.

    \b
    Examples:
      tchub site build --output site
      tchub site build --output public --title "Cost models of our cluster" --source file:///mnt/zoo
      tchub site build --output site --index index.json --json
    """
    from ..registry.catalogue import registry_of
    from ..site.build import TITLE, build

    built = build(registry_of(index, source), output, title or TITLE)
    number = len(built.checkpoints)
    out.data(built.as_dict(), lambda console: console.print(built.path / "index.html", soft_wrap=True))
    out.note(f"{number} checkpoints; {built.written} of {built.files} files written, {built.removed} removed")
