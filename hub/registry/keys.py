"""One public key: the days that it is for, and whether it was taken back."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

from .errors import ExpiredKeyError, RevokedKeyError
from .fields import bad, day, optional
from .signature import ALGORITHM, PUBLIC_BYTES, decode, key_id


@dataclass(frozen=True)
class Revocation:
    """When and why a key was taken back."""

    on: date
    reason: str


@dataclass(frozen=True)
class TrustedKey:
    """A public key.

    Attributes:
        public: its 32 bytes.
        not_before, not_after: the first and the last day on which its signatures are taken (UTC).
        revoked: set when it was taken back: nothing that it ever signed counts.
    """

    public: bytes
    not_before: date
    not_after: date
    revoked: Revocation | None = None

    @property
    def id(self) -> str:
        """Its name, which follows from its bytes."""
        return key_id(self.public)

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "id": self.id,
            "algorithm": ALGORITHM,
            "public": base64.b64encode(self.public).decode("ascii"),
            "not_before": self.not_before.isoformat(),
            "not_after": self.not_after.isoformat(),
            "revoked": self.revoked and {"date": self.revoked.on.isoformat(), "reason": self.revoked.reason},
        }

    @classmethod
    def from_dict(cls, raw: object, where: str) -> TrustedKey:
        """Read and check one key; raises IndexFileError."""
        if not isinstance(raw, dict):
            raise bad(where, "a key is not an object")
        public = decode(raw.get("public"), PUBLIC_BYTES)
        if public is None or raw.get("algorithm") != ALGORITHM or raw.get("id") != key_id(public):
            raise bad(where, f"the key {str(raw.get('id'))[:40]!r} is no {ALGORITHM} key of that id")
        days = day(raw, "not_before", where), day(raw, "not_after", where)
        return cls(public, *days, _revocation(raw, where))

    def require_usable(self, where: str, today: date | None) -> None:
        """Raise RevokedKeyError or ExpiredKeyError when what it signed does not count.

        Args:
            today: None where the days do not matter: for what was taken while the key was good.
        """
        about = {"path": where, "key": self.id}
        if self.revoked:
            raise RevokedKeyError(
                f"{where} is signed by key {self.id}, which was taken back on {self.revoked.on}: {self.revoked.reason}",
                remedy="wait for it to be signed anew; trust nothing that this key signed",
                **about,
            )
        if today is not None and not self.not_before <= today <= self.not_after:
            raise ExpiredKeyError(
                f"{where} is signed by key {self.id}, which is for {self.not_before} to {self.not_after}, not {today}",
                remedy="check this machine's clock; else upgrade tchub, whose keys are newer",
                **about,
            )


def _revocation(raw: Mapping[str, Any], where: str) -> Revocation | None:
    told = optional(raw, "revoked", dict, None, where)
    return told and Revocation(day(told, "date", where), optional(told, "reason", str, "no reason given", where))
