"""Fetch the index, check who vouches for it, and keep it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from ...zoo.errors import TchubError
from .errors import ImmutableVersionError, NotInSourceError, RollbackError, TokenError
from .exclusive import exclusive
from .fields import MAX_BYTES
from .index import INDEX_FILE, Index
from .index_place import IndexPlace
from .key_chain import read_chain, write_chain
from .rotation import Link, follow, link_name
from .signature import MAX_SIGNATURE_BYTES, SUFFIX
from .snapshot import SNAPSHOT_FILE, Opened, Snapshot, open_snapshot
from .store import store_error
from .trust import KeySet


@dataclass(frozen=True)
class Refreshed:
    """What a refresh did.

    Attributes:
        serial, before: of the index now, and of the stored one before; None where there was none.
        key: which key signed it.
        keys: serial of the set of trusted keys.
        added: checkpoints that neither the wheel nor the index before had.
        deprecated: checkpoints that were not deprecated before.
        unusable: why what was stored before could not be used, or None.
    """

    source: str
    commit: str | None
    date: str | None
    serial: int
    before: int | None
    key: str
    keys: int
    added: tuple[str, ...]
    deprecated: tuple[str, ...]
    unusable: str | None

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)


def refresh(place: IndexPlace, folder: Path, root: KeySet, wheel: Index, today: date) -> Refreshed:
    """Replace the stored index by the one of a place, when a trusted key signed it and it is no older.

    Args:
        folder: where the index is kept.
        root: the keys that are trusted to begin with.
        wheel: the index that ships with tchub, whose versions do not change either.

    Raises:
        SourceError: the place does not give it.
        UntrustedError: one class for each: wrong signature, a key that is unknown, expired or revoked, or none
            trusted at all, an older index or set of keys, an index after its last day.
        IndexFileError: it cannot be read.
        ImmutableVersionError: it changes what a version is.
        StoreError: it cannot be kept.
    """
    with _alone(folder):
        keys, lost_keys = _follow(place, folder, root, today)
        before, lost_index = _stored(folder, keys)
        fetched = _fetch(place, before, keys, today)
        _require_same_versions(fetched.index, (wheel, *([before.index] if before else [])))
        if before:
            _require_newer(fetched, before, folder)
        fetched.snapshot.write(folder)
    known = wheel.joined(before.index) if before else wheel
    old = {entry.id: entry.deprecated for entry in known.entries}
    return Refreshed(
        place.uri,
        place.commit,
        place.date,
        fetched.index.serial,
        before and before.index.serial,
        fetched.key.id,
        keys.serial,
        tuple(entry.id for entry in fetched.index.entries if entry.id not in old),
        tuple(entry.id for entry in fetched.index.entries if entry.deprecated and not old.get(entry.id)),
        lost_keys or lost_index,
    )


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One refresh at a time; raises StoreError where the folder cannot be written, before anything is fetched."""
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(exclusive(folder / ".lock"))
        except OSError as error:
            raise store_error(error, Path(error.filename or folder)) from error
        yield


def _follow(place: IndexPlace, folder: Path, root: KeySet, today: date) -> tuple[KeySet, str | None]:
    """The newest keys that the stored chain and then the place lead to, and why the stored one is of no use.

    New links are kept at once: whatever becomes of the index, a key that was taken back stays taken back.
    """
    try:
        keys, links = follow(root, read_chain(folder).get, str(folder), None)
        lost = None
    except TchubError as error:
        keys, links, lost = root, {}, error.message
    keys, new = follow(keys, lambda serial: _link(place, serial), place.uri, today)
    if new or lost:
        write_chain(folder, links | new)
    return keys, lost


def _stored(folder: Path, keys: KeySet) -> tuple[Opened | None, str | None]:
    """The stored index; one that is of no use is about to be replaced, and said."""
    try:
        return open_snapshot(folder, keys), None
    except TchubError as error:
        return None, error.message


def _fetch(place: IndexPlace, before: Opened | None, keys: KeySet, today: date) -> Opened:
    """Nothing of it is parsed before its signature was found to be good."""
    etag = before.snapshot.etag if before and before.snapshot.source == place.uri else None
    reply = place.read(INDEX_FILE, MAX_BYTES, etag)
    data = before.snapshot.index if before and reply.data is None else reply.data or b""
    signature = place.read(INDEX_FILE + SUFFIX, MAX_SIGNATURE_BYTES, None).data or b""
    where = f"{place.uri}/{INDEX_FILE}"
    key = keys.require(data, signature, where, today)
    index = Index.parse(data, where)
    index.require_current(where, today)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    snapshot = Snapshot(place.uri, now, data, signature, place.commit, place.date, reply.etag)
    return Opened(snapshot, index, key)


def _link(place: IndexPlace, serial: int) -> Link | None:
    name = link_name(serial)
    try:
        data = place.read(name, MAX_BYTES, None).data or b""
    except (NotInSourceError, TokenError):  # some servers refuse what is not there; if all is refused, the index tells
        return None
    return Link(data, place.read(name + SUFFIX, MAX_SIGNATURE_BYTES, None).data or b"")


def _require_same_versions(index: Index, known: Iterable[Index]) -> None:
    """Raise ImmutableVersionError when a version has another config or other weights than before."""
    listed = {entry.id: entry for entry in index.entries}
    for entry in (entry for one in known for entry in one.entries):
        now = listed.get(entry.id)
        if now is not None and entry.changed_in(now):
            raise ImmutableVersionError(
                f"the index lists other files for {entry.id} than before; versions never change",
                remedy="tell who publishes it; your index stays as it was",
                checkpoint=entry.id,
            )


def _require_newer(fetched: Opened, stored: Opened, folder: Path) -> None:
    new, old = fetched.index.serial, stored.index.serial
    if new > old or (new == old and fetched.snapshot.index == stored.snapshot.index):
        return
    state = "another index of the same" if new == old else "an older index, of"
    raise RollbackError(
        f"{fetched.snapshot.source} has {state} serial {new}; the one here is of serial {old}",
        remedy=f"use an up-to-date --source; to go back on purpose, remove {folder / SNAPSHOT_FILE}",
        path=fetched.snapshot.source,
        serial=new,
        known=old,
    )
