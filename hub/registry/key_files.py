"""Private keys in files: PEM with PKCS #8, for nobody but their owner to read, with a passphrase or without."""

from __future__ import annotations

import os
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from ...zoo.untrusted import read_plain
from .errors import KeyFileError
from .keys import TrustedKey

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_MAX_BYTES = 16 << 10
_LOCKED = b"BEGIN ENCRYPTED PRIVATE KEY"


def make_key(path: Path, passphrase: str | None, not_before: date, not_after: date) -> TrustedKey:
    """Write a new private key, and return the public one.

    Raises:
        KeyFileError: the file exists, or cannot be written.
    """
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.generate()
    lock = form.BestAvailableEncryption(passphrase.encode()) if passphrase else form.NoEncryption()
    text = private.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, lock)
    try:
        # Private from its first byte on; a key that is there is never overwritten.
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(text)
    except OSError as error:
        raise KeyFileError(
            f"{path} cannot be written: {error.strerror}",
            remedy="give a new file in a folder that you may write",
            path=str(path),
        ) from error
    return TrustedKey(private.public_key().public_bytes_raw(), not_before, not_after)


def is_locked(path: Path) -> bool:
    """Whether a passphrase is needed; raises KeyFileError."""
    return _LOCKED in _read(path)


def load_key(path: Path, passphrase: str | None = None) -> Ed25519PrivateKey:
    """A private key from its file.

    Raises:
        KeyFileError: it is missing, others may read it, it is no Ed25519 key, or the passphrase is wrong.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    text = _read(path)
    try:
        private = load_pem_private_key(text, passphrase.encode() if passphrase else None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise _unusable(path, "no private key in it, or the passphrase is wrong") from error
    if not isinstance(private, Ed25519PrivateKey):
        raise _unusable(path, "its key is not of the kind Ed25519")
    return private


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_mode & 0o077:
            raise KeyFileError(f"others may read {path}", remedy=f"chmod 600 {path}", path=str(path))
        return read_plain(path, _MAX_BYTES)
    except (OSError, ValueError) as error:
        raise _unusable(path, str(error)) from error


def _unusable(path: Path, why: str) -> KeyFileError:
    return KeyFileError(
        f"{path} cannot be used: {why}", remedy="give the file that `tchub index keygen` wrote", path=str(path)
    )
