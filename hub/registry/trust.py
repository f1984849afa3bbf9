"""Whose signatures count: the set of keys that is trusted on this machine."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from importlib import resources
from pathlib import Path
from typing import Any

from .errors import NoTrustedKeyError, UnknownKeyError
from .fields import bad, check_format, parse_document, read_document, whole
from .keys import TrustedKey
from .signature import Signature

KEYS_FORMAT = 1
VARIABLE = "TCHUB_TRUSTED_KEYS"
_MAX_KEYS = 100


@dataclass(frozen=True)
class KeySet:
    """The keys that are trusted.

    Attributes:
        serial: one more than that of the set which it replaced.
    """

    serial: int = 0
    keys: tuple[TrustedKey, ...] = ()

    @classmethod
    def parse(cls, data: bytes, where: str) -> KeySet:
        """Read the JSON `{format, serial, keys}`; raises IndexFileError."""
        return cls.from_dict(parse_document(data, where), where)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any], where: str) -> KeySet:
        """Read a set from its JSON object; raises IndexFileError."""
        listed = raw.get("keys")
        if not isinstance(listed, list) or len(listed) > _MAX_KEYS:
            raise bad(where, f"no list of at most {_MAX_KEYS} keys in it")
        check_format(raw.get("format"), KEYS_FORMAT, where)
        keys = tuple(TrustedKey.from_dict(item, where) for item in listed)
        if len({key.id for key in keys}) != len(keys):
            raise bad(where, "a key is listed twice")
        return cls(whole(raw, "serial", 0, where), keys)

    def to_json(self) -> str:
        """The text of the set's file."""
        body = {"format": KEYS_FORMAT, "serial": self.serial, "keys": [key.as_dict() for key in self.keys]}
        return json.dumps(body, indent=2) + "\n"

    def require(self, data: bytes, signature: bytes, where: str, today: date | None) -> TrustedKey:
        """The key that signed these bytes.

        Args:
            signature: the text of the signature's file.
            where: what is signed, for messages.
            today: the day on which the key has to be good; None for any day.

        Raises:
            UntrustedError: one class for each: no key is trusted, this one is not, it was taken back, it is out of
                its days, the signature is wrong.
        """
        if not self.keys:
            raise NoTrustedKeyError(
                f"{where} cannot be checked: this tchub trusts no key",
                remedy=f"get the publisher's keys.json by a way that you trust, and set {VARIABLE} to it",
                path=where,
            )
        found = Signature.parse(signature, f"the signature of {where}")
        key = next((key for key in self.keys if key.id == found.key), None)
        if key is None:
            raise UnknownKeyError(
                f"{where} is signed by key {found.key}, which is not trusted here",
                remedy=f"check where it comes from; to trust another publisher set {VARIABLE} to their keys.json",
                path=where,
                key=found.key,
            )
        key.require_usable(where, today)
        found.require(key.public, data, where)
        return key


def root_keys() -> KeySet:
    """The keys that are trusted to begin with: the wheel's, or those of the file that TCHUB_TRUSTED_KEYS names.

    Raises:
        IndexFileError: the file cannot be read.
    """
    named = os.environ.get(VARIABLE)
    if named:
        path = Path(named).expanduser()
        return KeySet.from_dict(read_document(path), str(path))
    return KeySet.parse((resources.files("tchub.hub.registry") / "keys.json").read_bytes(), "keys.json")


def today() -> date:
    """The day, in UTC."""
    return datetime.now(UTC).date()
