"""Detached Ed25519 signatures: `index.json.sig` beside `index.json`, over its exact bytes."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .errors import IndexFileError, WrongSignatureError
from .fields import check_format, parse_document

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SUFFIX = ".sig"
ALGORITHM = "ed25519"
SIGNATURE_FORMAT = 1
MAX_SIGNATURE_BYTES = 4096
SIGNATURE_BYTES, PUBLIC_BYTES = 64, 32
_KEY_ID = re.compile(r"[0-9a-f]{16}")


def key_id(public: bytes) -> str:
    """What a key is called: the first 16 hex digits of the sha256 of its 32 public bytes."""
    return hashlib.sha256(public).hexdigest()[:16]


def decode(text: object, size: int) -> bytes | None:
    """The bytes of a base64 text, or None when it is none of that many bytes."""
    try:
        data = base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except (binascii.Error, ValueError):
        return None
    return data if len(data) == size else None


@dataclass(frozen=True, slots=True)
class Signature:
    """Who signed, and the 64 bytes."""

    key: str
    data: bytes

    @classmethod
    def parse(cls, text: bytes, where: str) -> Signature:
        """Read the JSON `{format, key, algorithm, signature}`.

        Raises:
            WrongSignatureError: it is not that, or of a newer format.
        """
        try:
            raw = parse_document(text[: MAX_SIGNATURE_BYTES + 1], where)
            check_format(raw.get("format"), SIGNATURE_FORMAT, where)
        except IndexFileError as error:
            raise WrongSignatureError(error.message, remedy=error.remedy, path=where) from error
        data = decode(raw.get("signature"), SIGNATURE_BYTES)
        if data is None or raw.get("algorithm") != ALGORITHM or not _KEY_ID.fullmatch(str(raw.get("key"))):
            raise WrongSignatureError(
                f"{where} is no {ALGORITHM} signature", remedy="fetch it again, or ask who publishes it", path=where
            )
        return cls(raw["key"], data)

    def to_json(self) -> str:
        """The text of the signature's file."""
        body = {
            "format": SIGNATURE_FORMAT,
            "key": self.key,
            "algorithm": ALGORITHM,
            "signature": base64.b64encode(self.data).decode("ascii"),
        }
        return json.dumps(body, indent=2) + "\n"

    def require(self, public: bytes, signed: bytes, where: str) -> None:
        """Raise WrongSignatureError unless the key signed these very bytes."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        try:
            Ed25519PublicKey.from_public_bytes(public).verify(self.data, signed)
        except (InvalidSignature, ValueError) as error:
            raise WrongSignatureError(
                f"{where} is not what key {self.key} signed: it was changed, or its signature was",
                remedy="fetch it again from another place; if it stays so, tell who publishes it",
                path=where,
                key=self.key,
            ) from error


def sign(data: bytes, private: Ed25519PrivateKey) -> Signature:
    """The signature of these bytes."""
    return Signature(key_id(private.public_key().public_bytes_raw()), private.sign(data))
