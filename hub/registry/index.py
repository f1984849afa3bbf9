"""The index: every published checkpoint with its files' sizes and sha256, its licences and its scores."""

import json
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Self

from msgspec import Meta

from .entry import Entry, checked
from .files import check_format, convert, parse_document, read_bytes, unusable

INDEX_FORMAT = 1
INDEX_FILE = "index.json"


@dataclass(frozen=True)
class _IndexDocument:
    checkpoints: Annotated[tuple[Entry, ...], Meta(max_length=5_000)]
    serial: Annotated[int, Meta(ge=0)] = 0


@dataclass(frozen=True)
class Index:
    """Entries, unique by name and version; `serial` grows with every publication, from 0."""

    entries: tuple[Entry, ...] = ()
    serial: int = 0

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the index of a file; raises IndexFileError."""
        return cls.parse(read_bytes(path), str(path))

    @classmethod
    def parse(cls, text: str | bytes, path: str = "index") -> Self:
        """Return the index of a JSON text; raises IndexFileError."""
        raw = parse_document(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text, path)
        check_format(raw, INDEX_FORMAT, path)
        document = convert(raw, _IndexDocument, path)
        entries = tuple(checked(entry, path) for entry in document.checkpoints)
        twice = sorted(id for id, count in Counter(entry.id for entry in entries).items() if count > 1)
        if twice:
            raise unusable(path, f"listed twice: {', '.join(twice[:10])}")
        if local := sorted({entry.name for entry in entries if entry.is_local}):
            remedy = "use an index that lists them under names without +, or ask for that whoever publishes this one"
            raise unusable(path, f"names with + are of one machine alone: {', '.join(local[:10])}", remedy)
        return cls(entries, document.serial)

    @classmethod
    @cache
    def shipped(cls) -> Self:
        """Return the index of the wheel."""
        return cls.parse((resources.files("tchub.hub.registry") / INDEX_FILE).read_bytes(), INDEX_FILE)

    def to_json(self) -> str:
        """Return the file's text: sorted, so that equal indexes are equal bytes."""
        ordered = sorted(self.entries, key=lambda entry: (entry.name, entry.semver))
        entries = [entry.as_dict() for entry in ordered]
        body = {"format": INDEX_FORMAT, "serial": self.serial, "checkpoints": entries}
        return json.dumps(body, indent=2, sort_keys=True, allow_nan=False) + "\n"

    def merged(self, more: Iterable[Entry]) -> Self:
        """Return this index with further entries; a version of both stays as it is here (versions never change)."""
        known = {entry.id for entry in self.entries}
        further = (entry for entry in more if entry.id not in known)
        return replace(self, entries=(*self.entries, *further))

    def joined(self, other: "Index") -> "Index":
        """Return both indexes; a version of both stays as it is here, but the newer index decides `deprecated`."""
        newer = max(other, self, key=lambda index: index.serial)
        deprecated = {entry.id: entry.deprecated for entry in newer.entries}
        own = (replace(entry, deprecated=deprecated.get(entry.id, entry.deprecated)) for entry in self.entries)
        return Index(tuple(own), newer.serial).merged(other.entries)


def own_index() -> Path | None:
    """Return the file that TCHUB_INDEX names."""
    text = os.environ.get("TCHUB_INDEX")
    return Path(text).expanduser() if text else None
