"""Signing a file of a publisher, and checking one: an index, or a set of keys."""

from __future__ import annotations

import os
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from ...zoo.files import write_atomically
from ...zoo.untrusted import read_plain
from .errors import KeyFileError, WrongSignatureError
from .fields import parse_document, read_file
from .index import Index
from .keys import TrustedKey
from .signature import MAX_SIGNATURE_BYTES, SUFFIX, Signature, sign
from .store import store_error
from .trust import KeySet

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


def signature_path(path: Path) -> Path:
    """`index.json.sig` for `index.json`."""
    return path.with_name(path.name + SUFFIX)


def sign_file(path: Path, private: Ed25519PrivateKey) -> tuple[Signature, Index | KeySet]:
    """Write the signature beside the file; also gives what was signed.

    Raises:
        IndexFileError: it is neither an index nor a set of keys that clients would take.
        StoreError: the signature cannot be written.
    """
    data = read_file(path)
    content = _content(data, str(path))
    made = sign(data, private)
    _write(signature_path(path), made.to_json())
    return made, content


def check_file(path: Path, keys: KeySet, today: date) -> tuple[TrustedKey, Index | KeySet]:
    """The key that signed a file, and what is in it.

    Raises:
        UntrustedError: one class for each thing that can be wrong with the signature or its key.
        IndexFileError: the file cannot be read.
    """
    data = read_file(path)
    try:
        signature = read_plain(signature_path(path), MAX_SIGNATURE_BYTES)
    except (OSError, ValueError) as error:
        raise WrongSignatureError(
            f"{signature_path(path)} cannot be read: {error}", remedy=f"tchub index sign {path}", path=str(path)
        ) from error
    key = keys.require(data, signature, str(path), today)
    content = _content(data, str(path))
    if isinstance(content, Index):
        content.require_current(str(path), today)
    return key, content


def read_keys(path: Path) -> KeySet:
    """A set of keys from its file; raises IndexFileError."""
    return KeySet.parse(read_file(path), str(path))


def require_new(path: Path) -> None:
    """Refuse a place for keys where a file is: clients may trust it, or have followed its very bytes.

    Raises:
        KeyFileError: it is there already.
    """
    if os.path.lexists(path):
        raise _taken(path)


def write_keys(path: Path, keys: KeySet) -> None:
    """Write a set of keys as a new file, into a folder that is made where it is missing.

    Raises:
        KeyFileError: the file is there already.
        StoreError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise store_error(error, path) from error
    try:
        _write_new(path, keys.to_json().encode())
    except FileExistsError as error:
        raise _taken(path) from error
    except OSError as error:
        raise store_error(error, path) from error


def _write_new(path: Path, data: bytes) -> None:
    """Not by renaming, which would replace what another process put there meanwhile."""
    with path.open("xb") as file:
        try:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            path.unlink(missing_ok=True)
            raise


def _taken(path: Path) -> KeyFileError:
    return KeyFileError(
        f"{path} is there already, and keys that are out are never replaced",
        remedy="give another --out, or make the next set from it; remove it only if nobody ever had it",
        path=str(path),
    )


def _write(path: Path, text: str) -> None:
    try:
        write_atomically(path, text.encode())
    except OSError as error:
        raise store_error(error, path) from error


def _content(data: bytes, where: str) -> Index | KeySet:
    raw = parse_document(data, where)
    return KeySet.from_dict(raw, where) if "keys" in raw else Index.from_dict(raw, where)
