"""Someone who publishes an index: a folder with the signed files, and private keys."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tchub.hub.registry import Entry, Index
from tchub.hub.registry.index_place import open_place
from tchub.hub.registry.keys import TrustedKey
from tchub.hub.registry.refresh import Refreshed, refresh
from tchub.hub.registry.rotation import link_name, successor
from tchub.hub.registry.signature import sign
from tchub.hub.registry.trust import KeySet

TODAY = date(2026, 6, 1)
YEAR = timedelta(days=365)


@dataclass
class Publisher:
    """Keys by name; `keys` is the set that clients trust to begin with, and `newest` the one that it led to."""

    root: Path
    private: dict[str, Ed25519PrivateKey] = field(default_factory=dict)
    keys: KeySet = field(default_factory=KeySet)
    newest: KeySet = field(default_factory=KeySet)

    @classmethod
    def begin(cls, root: Path) -> Publisher:
        """With one key, `first`, good for a year before and after today."""
        root.mkdir(parents=True, exist_ok=True)
        made = cls(root)
        made.keys = made.newest = KeySet(1, (made.key("first"),))
        return made

    def key(self, name: str, not_before: date = TODAY - YEAR, not_after: date = TODAY + YEAR) -> TrustedKey:
        """A new key."""
        self.private[name] = Ed25519PrivateKey.generate()
        return TrustedKey(self.public(name), not_before, not_after)

    def public(self, name: str) -> bytes:
        """The public bytes of a key."""
        return self.private[name].public_key().public_bytes_raw()

    def put(self, name: str, data: bytes, by: str) -> None:
        """A file and its signature."""
        (self.root / name).write_bytes(data)
        (self.root / f"{name}.sig").write_text(sign(data, self.private[by]).to_json())

    def publish(self, *entries: Entry, serial: int = 1, by: str = "first", **fields: Any) -> Index:
        """Put a signed index there."""
        index = Index(entries, serial, **fields)
        self.put("index.json", index.to_json().encode(), by)
        return index

    def hand_on(self, *new: str, by: str, revoke: tuple[str, ...] = ()) -> KeySet:
        """Put the next set of keys there, with new keys and without some."""
        ids = [key.id for key in self.newest.keys if key.public in {self.public(name) for name in revoke}]
        added = KeySet(0, tuple(self.key(name) for name in new))
        self.newest = successor(self.newest, added, ids, "a stolen laptop", TODAY)
        self.put(link_name(self.newest.serial), self.newest.to_json().encode(), by)
        return self.newest

    def refresh(self, cache: Path, keys: KeySet | None = None, today: date = TODAY, **more: Any) -> Refreshed:
        """A client's refresh from the folder; it knows nothing but these keys and what its cache holds."""
        place = more.pop("place", None) or open_place(self.root.as_uri())
        return refresh(place, cache, self.keys if keys is None else keys, more.pop("wheel", Index()), today)


def altered(keys: KeySet, **changes: Any) -> KeySet:
    """The set with other fields of its first key."""
    return replace(keys, keys=(replace(keys.keys[0], **changes), *keys.keys[1:]))
