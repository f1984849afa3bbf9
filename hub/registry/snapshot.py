"""What the last refresh brought: the index, its signature, the chain of keys, and where they came from.

One file, so that it is replaced at once. Everything in it is checked again whenever it is opened.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...zoo.atomic import write_atomically
from ...zoo.errors import TchubError, TchubWarning
from ...zoo.untrusted import parse_json, read_plain
from .errors import IndexFileError
from .fields import MAX_BYTES, bad, check_format, optional
from .index import INDEX_FILE, Index
from .keys import TrustedKey
from .rotation import Link, follow
from .store import cache_root, store_error
from .trust import KeySet, root_keys

SNAPSHOT_FORMAT = 1
SNAPSHOT_FILE = "refreshed.json"
_LIMIT = 3 * MAX_BYTES  # an index inside of a text has its quotes escaped
_REMEDY = "run: tchub index refresh"


@dataclass(frozen=True)
class Snapshot:
    """An index as it was fetched.

    Attributes:
        source: where from, as a user writes it.
        fetched: when (UTC, ISO 8601).
        commit, date: of the Hub, which one it was read at and when that was made.
        etag: what a mirror called it.
        index, signature: the bytes of index.json and index.json.sig.
        links: the sets of keys since those of the wheel, by serial.
    """

    source: str
    fetched: str
    index: bytes
    signature: bytes
    commit: str | None = None
    date: str | None = None
    etag: str | None = None
    links: Mapping[int, Link] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Snapshot | None:
        """The stored one, or None where nothing was ever fetched.

        Raises:
            IndexFileError: it is damaged, or of a newer format.
        """
        path = folder / SNAPSHOT_FILE
        try:
            return cls._from_dict(parse_json(read_plain(path, _LIMIT)), str(path))
        except FileNotFoundError:
            return None
        except IndexFileError as error:
            raise IndexFileError(error.message, remedy=_REMEDY, path=str(path)) from error
        except (OSError, ValueError) as error:
            raise bad(str(path), str(error), _REMEDY) from error

    @classmethod
    def _from_dict(cls, raw: Any, where: str) -> Snapshot:
        if not isinstance(raw, dict):
            raise bad(where, "not a JSON object")
        check_format(raw.get("format"), SNAPSHOT_FORMAT, where)
        texts = {key: optional(raw, key, str, "", where) for key in ("source", "fetched", "index", "signature")}
        told = {key: optional(raw, key, str, None, where) for key in ("commit", "date", "etag")}
        chain = optional(raw, "keys", dict, {}, where)
        links = {int(serial): _link(link, where) for serial, link in chain.items()}
        encoded = {key: texts.pop(key).encode() for key in ("index", "signature")}
        return cls(**texts, **encoded, **told, links=links)

    def write(self, folder: Path) -> None:
        """Put it in place of the stored one, whole or not at all; raises StoreError."""
        body = {
            "format": SNAPSHOT_FORMAT,
            **{key: getattr(self, key) for key in ("source", "fetched", "commit", "date", "etag")},
            "index": self.index.decode(),
            "signature": self.signature.decode(),
            "keys": {str(serial): [link.data.decode(), link.signature.decode()] for serial, link in self.links.items()},
        }
        path = folder / SNAPSHOT_FILE
        try:
            write_atomically(path, (json.dumps(body, indent=2) + "\n").encode())
        except OSError as error:
            raise store_error(error, path) from error

    def open(self, root: KeySet) -> Opened:
        """Check signature and keys again, and read the index.

        The days of a key are not looked at: they were when this was fetched.

        Raises:
            UntrustedError: no key vouches for it any more, or it was changed.
            IndexFileError: its index cannot be read.
        """
        keys, _ = follow(root, self.links.get, self.source, None)
        where = f"{self.source}/{INDEX_FILE}"
        key = keys.require(self.index, self.signature, where, None)
        return Opened(self, Index.parse(self.index, where), key, keys)


@dataclass(frozen=True)
class Opened:
    """A snapshot that was found to be good, the key that signed it, and the keys that are trusted by now."""

    snapshot: Snapshot
    index: Index
    key: TrustedKey
    keys: KeySet


def index_folder() -> Path:
    """Where the refreshed index lives: beside the fetched checkpoints."""
    return cache_root().parent / "index"


def trusted_keys(folder: Path) -> KeySet:
    """The keys that are trusted by now: those of the last refresh, else the ones to begin with.

    Raises:
        UntrustedError, IndexFileError: the stored index cannot be used.
    """
    root = root_keys()
    snapshot = Snapshot.read(folder)
    return snapshot.open(root).keys if snapshot else root


def with_refreshed(index: Index) -> Index:
    """The index joined with the refreshed one; one that cannot be used is left out with a warning."""
    try:
        snapshot = Snapshot.read(index_folder())
        return index.joined(snapshot.open(root_keys()).index) if snapshot else index
    except TchubError as error:
        text = f"the refreshed index is left out: {error.message}; `tchub index refresh` fetches it anew"
        warnings.warn(text, TchubWarning, stacklevel=2)
        return index


def _link(raw: object, where: str) -> Link:
    if not isinstance(raw, list) or len(raw) != 2 or not all(isinstance(text, str) for text in raw):
        raise bad(where, "a set of keys is not a pair of texts")
    return Link(raw[0].encode(), raw[1].encode())
