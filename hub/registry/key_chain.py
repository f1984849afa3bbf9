"""The chain of key sets that this machine has followed so far, from those that it trusted to begin with.

Kept apart from the index and before it: a key that was once seen to be taken back stays taken back.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...zoo.files import write_atomically
from ...zoo.untrusted import parse_json, read_plain
from .errors import IndexFileError
from .fields import MAX_BYTES, bad, check_format, optional
from .rotation import Link, follow
from .store import cache_root, store_error
from .trust import KeySet, root_keys

CHAIN_FORMAT = 1
CHAIN_FILE = "keys.json"
_REMEDY = "run: tchub index refresh"


def index_folder() -> Path:
    """Where refreshed things live: beside the fetched checkpoints."""
    return cache_root().parent / "index"


def trusted_keys(folder: Path) -> KeySet:
    """The keys that are trusted by now; every link is checked again, but for the days of its key.

    Raises:
        IndexFileError: the chain, or the set of keys that it begins at, cannot be read.
        UntrustedError: a link is not signed as it should be.
    """
    return follow(root_keys(), read_chain(folder).get, str(folder), None)[0]


def read_chain(folder: Path) -> dict[int, Link]:
    """The stored links by serial; raises IndexFileError."""
    raw = read_kept(folder / CHAIN_FILE, CHAIN_FORMAT, MAX_BYTES) or {}
    with kept_by_refresh(folder / CHAIN_FILE):
        return {int(serial): _link(pair) for serial, pair in optional(raw, "links", dict, {}, CHAIN_FILE).items()}


def read_kept(path: Path, newest: int, limit: int) -> dict[str, Any] | None:
    """The JSON object of a file that a refresh wrote, or None where there is none; raises IndexFileError."""
    with kept_by_refresh(path):
        try:
            raw = parse_json(read_plain(path, limit))
        except FileNotFoundError:
            return None
        if not isinstance(raw, dict):
            raise ValueError("not a JSON object")
        check_format(raw.get("format"), newest, str(path))
        return raw


@contextmanager
def kept_by_refresh(path: Path) -> Iterator[None]:
    """Whatever is wrong with the file, the next refresh mends it."""
    try:
        yield
    except IndexFileError as error:
        raise IndexFileError(error.message, remedy=_REMEDY, path=str(path)) from error
    except (OSError, ValueError) as error:
        raise bad(str(path), str(error), _REMEDY) from error


def write_chain(folder: Path, links: Mapping[int, Link]) -> None:
    """Put it in place of the stored one, whole or not at all; raises StoreError."""
    path = folder / CHAIN_FILE
    pairs = {str(serial): [link.data.decode(), link.signature.decode()] for serial, link in links.items()}
    try:
        write_atomically(path, (json.dumps({"format": CHAIN_FORMAT, "links": pairs}, indent=2) + "\n").encode())
    except OSError as error:
        raise store_error(error, path) from error


def _link(raw: object) -> Link:
    if not isinstance(raw, list) or len(raw) != 2 or not all(isinstance(text, str) for text in raw):
        raise ValueError("a link is not a pair of texts")
    return Link(raw[0].encode(), raw[1].encode())
