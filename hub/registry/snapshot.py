"""What the last refresh brought: the index, its signature, and where they came from.

One file, so that it is replaced at once. The signature is checked again whenever it is opened.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from pathlib import Path

from ...zoo.files import write_atomically
from ...zoo.errors import TchubError, TchubWarning
from .fields import MAX_BYTES, optional
from .index import INDEX_FILE, Index
from .key_chain import index_folder, kept_by_refresh, read_kept, trusted_keys
from .keys import TrustedKey
from .store import store_error
from .trust import KeySet

SNAPSHOT_FORMAT = 1
SNAPSHOT_FILE = "refreshed.json"
_LIMIT = 3 * MAX_BYTES  # an index inside of a text has its quotes escaped


@dataclass(frozen=True)
class Snapshot:
    """An index as it was fetched.

    Attributes:
        source: where from, as a user writes it.
        fetched: when (UTC, ISO 8601).
        commit, date: of the Hub, which one it was read at and when that was made.
        etag: what a mirror called it.
        index, signature: the bytes of index.json and index.json.sig.
    """

    source: str
    fetched: str
    index: bytes
    signature: bytes
    commit: str | None = None
    date: str | None = None
    etag: str | None = None

    @classmethod
    def read(cls, folder: Path) -> Snapshot | None:
        """The stored one, or None where nothing was ever fetched.

        Raises:
            IndexFileError: it is damaged, or of a newer format.
        """
        path = folder / SNAPSHOT_FILE
        raw = read_kept(path, SNAPSHOT_FORMAT, _LIMIT)
        if raw is None:
            return None
        with kept_by_refresh(path):
            told = {key: optional(raw, key, str, None, path.name) for key in ("commit", "date", "etag")}
            texts = {key: optional(raw, key, str, "", path.name) for key in ("source", "fetched", "index", "signature")}
            encoded = {key: texts.pop(key).encode() for key in ("index", "signature")}
            return cls(**texts, **encoded, **told)

    def write(self, folder: Path) -> None:
        """Put it in place of the stored one, whole or not at all; raises StoreError."""
        body = {
            "format": SNAPSHOT_FORMAT,
            **{key: getattr(self, key) for key in ("source", "fetched", "commit", "date", "etag")},
            "index": self.index.decode(),
            "signature": self.signature.decode(),
        }
        path = folder / SNAPSHOT_FILE
        try:
            write_atomically(path, (json.dumps(body, indent=2) + "\n").encode())
        except OSError as error:
            raise store_error(error, path) from error

    def open(self, keys: KeySet) -> Opened:
        """Check the signature again, and read the index.

        The days of a key are not looked at: they were when this was fetched.

        Raises:
            UntrustedError: none of the keys vouches for it (any more), or it was changed.
            IndexFileError: its index cannot be read.
        """
        where = f"{self.source}/{INDEX_FILE}"
        key = keys.require(self.index, self.signature, where, None)
        return Opened(self, Index.parse(self.index, where), key)


@dataclass(frozen=True)
class Opened:
    """A snapshot that was found to be good, and the key that signed it."""

    snapshot: Snapshot
    index: Index
    key: TrustedKey


def open_snapshot(folder: Path, keys: KeySet) -> Opened | None:
    """The stored one, checked; None where nothing was ever fetched. Raises as `Snapshot.read` and `Snapshot.open`."""
    snapshot = Snapshot.read(folder)
    return snapshot and snapshot.open(keys)


def with_refreshed(index: Index) -> Index:
    """The index joined with the refreshed one; one that cannot be used is left out with a warning."""
    try:
        folder = index_folder()
        snapshot = Snapshot.read(folder)
        return index.joined(snapshot.open(trusted_keys(folder)).index) if snapshot else index
    except TchubError as error:
        text = f"the refreshed index is left out: {error.message}; `tchub index refresh` fetches it anew"
        warnings.warn(text, TchubWarning, stacklevel=2)
        return index
