"""How trust is handed on: each set of keys is signed by a key of the set before it.

A publisher puts `keys-2.json` with `keys-2.json.sig` beside the index, then `keys-3.json`, and so on; none is ever
taken away, so that a client that knows any one set of the chain finds its way to the newest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import date

from .errors import RollbackError
from .fields import bad
from .keys import Revocation
from .trust import KeySet


@dataclass(frozen=True)
class Link:
    """A set of keys and its signature, as they were fetched."""

    data: bytes
    signature: bytes


def link_name(serial: int) -> str:
    """The file that holds the set of this serial."""
    return f"keys-{serial}.json"


def follow(
    trusted: KeySet, find: Callable[[int], Link | None], where: str, today: date | None
) -> tuple[KeySet, dict[int, Link]]:
    """Go from a trusted set to the newest that its chain leads to.

    Args:
        find: the link of a serial, or None where the chain ends.
        where: the place, for messages.
        today: the day on which the signing keys have to be good; None for links that were followed before.

    Returns:
        The newest set, and the links on the way by their serials.

    Raises:
        UntrustedError: a link is not signed by a key of the set before it, or that key does not count.
        RollbackError: a link holds the set of another serial than its name says.
        IndexFileError: a link cannot be read.
    """
    links: dict[int, Link] = {}
    while (link := find(trusted.serial + 1)) is not None:
        serial = trusted.serial + 1
        trusted = _succeed(trusted, link, f"{where}/{link_name(serial)}", today)
        links[serial] = link
    return trusted, links


def successor(trusted: KeySet, added: KeySet, revoked: Iterable[str], reason: str, today: date) -> KeySet:
    """The set that comes after this one: with further keys, and with some taken back.

    Raises:
        IndexFileError: a key is there already, or one to take back is not.
    """
    wanted, known = set(revoked), {key.id for key in trusted.keys}
    if missing := wanted - known:
        raise bad("the set of keys", f"it holds no key {', '.join(sorted(missing))}", "give the id of one of its keys")
    if twice := known & {key.id for key in added.keys}:
        raise bad("the set of keys", f"it holds {', '.join(sorted(twice))} already", "add a key that is not in it")
    taken_back = Revocation(today, reason)
    kept = (replace(key, revoked=taken_back) if key.id in wanted else key for key in trusted.keys)
    return KeySet(trusted.serial + 1, (*kept, *added.keys))


def _succeed(trusted: KeySet, link: Link, where: str, today: date | None) -> KeySet:
    """The set of a link, once a key of the trusted set vouches for it."""
    trusted.require(link.data, link.signature, where, today)
    found = KeySet.parse(link.data, where)
    if found.serial != trusted.serial + 1:
        raise RollbackError(
            f"{where} holds the keys of serial {found.serial}",
            remedy="tell who publishes it: an older set of keys stands in place of a newer one",
            path=where,
            serial=found.serial,
            known=trusted.serial,
        )
    return found
