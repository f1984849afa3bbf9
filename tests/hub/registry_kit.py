"""Kit of the registry's tests: typed refusals, a project that pins checkpoints, a publisher of signed indexes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from securesystemslib.signer import CryptoSigner
from tchub.hub.registry import Entry, Index, parse_source
from tchub.hub.registry.signing import SignedIndex, sign_index
from tchub.hub.registry.sources import Source
from tchub.hub.registry.trust import IndexUpdate, TrustedIndexes
from tchub.zoo.errors import TchubError
from toy_checkpoints import publish, write_index

GOOD = {
    "name": "tcl-epyc",
    "version": "1.0.0",
    "arch": "tcl",
    "family": "epyc",
    "format": 1,
    "feature_schema": "tcl-cpu",
    "weights_licence": "Apache-2.0",
    "data_licence": "CC0-1.0",
    "files": {
        "config.json": {"size": 10, "sha256": "a" * 64},
        "model.safetensors": {"size": 20, "sha256": "b" * 64},
    },
}


@contextmanager
def refused(reason: str, match: str | None = None) -> Iterator[pytest.ExceptionInfo[Any]]:
    """Expect a SourceError or UntrustedError of this reason, with a remedy."""
    with pytest.raises(TchubError, match=match) as caught:
        yield caught
    assert caught.value.fields.get("reason") == reason, caught.value
    assert caught.value.remedy


def release(project: Path, *entries: Entry) -> None:
    """Let the index of the fixture `project` list these from now on."""
    write_index(project.parent / "index.json", *entries)


def newer(project: Path, version: str = "1.1.0") -> Entry:
    """Publish a newer version of tcl-epyc."""
    root = project.parent / "zoo"
    entry = publish(root, "tcl-epyc", version, entry={"sources": [root.as_uri()]})
    release(project, *Index.read(project.parent / "index.json").entries, entry)
    return entry


@dataclass
class Publisher:
    """A folder with a signed index, and the keys that sign it, by name.

    Attributes:
        trusted: the first root, which clients trust.
    """

    root: Path
    keys: dict[str, CryptoSigner] = field(default_factory=dict)
    trusted: bytes = b""

    def key(self, name: str) -> CryptoSigner:
        """Return a key, made when it is first used."""
        return self.keys.setdefault(name, CryptoSigner.generate_ed25519())

    def publish(
        self,
        *entries: Entry,
        serial: int = 1,
        by: Sequence[str] = ("first",),
        trust: Sequence[str] = (),
        revoke: Sequence[str] = (),
        days: int = 365,
        **fields: Any,
    ) -> Index:
        """Sign an index and put it there."""
        index = Index(entries, serial, **fields)
        self.root.mkdir(parents=True, exist_ok=True)
        (self.root / "index.json").write_text(index.to_json())
        self.sign(by, trust, revoke, days)
        return index

    def sign(
        self, by: Sequence[str] = ("first",), trust: Sequence[str] = (), revoke: Sequence[str] = (), days: int = 365
    ) -> SignedIndex:
        """Sign the index that is there."""
        signed = sign_index(
            self.root,
            [self.key(name) for name in by],
            trust=[self.key(name).public_key for name in trust],
            revoke=[self.key(name).public_key.keyid[:16] for name in revoke],
            days=days,
        )
        self.trusted = self.trusted or Path(signed.root).read_bytes()
        return signed

    def client(self, cache: Path) -> TrustedIndexes:
        """Return a client that trusts the first root, and knows what its cache holds."""
        return TrustedIndexes(self.trusted, cache)

    def refresh(self, cache: Path, source: Source | None = None, shipped: Index | None = None) -> IndexUpdate:
        """Refresh a client from the folder, or another source."""
        return self.client(cache).refresh(source or parse_source(self.root.as_uri()), shipped or Index())
