"""The index: every published checkpoint with its files' sizes and sha256, its licences and its scores."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from importlib import resources
from pathlib import Path
from typing import Any

from .entry import Entry
from .errors import CheckpointNameError, ExpiredIndexError
from .fields import bad, check_format, day, optional, parse_document, read_document, whole
from .names import CheckpointName

INDEX_FORMAT = 1
INDEX_FILE = "index.json"
_MAX_ENTRIES = 5_000
_MAX_ALIASES = 5_000
_NO_PLUS = "use an index that lists them under names without +, or ask for that whoever publishes this one"


@dataclass(frozen=True)
class Index:
    """A list of entries, unique by name and version.

    Attributes:
        serial: grows with every publication; 0 where there is none.
        aliases: a checkpoint's old name -> the name that it has now.
        expires: the last day (UTC) on which it is taken for the newest; None where the publisher set none.
    """

    entries: tuple[Entry, ...] = ()
    serial: int = 0
    aliases: Mapping[str, str] = field(default_factory=dict)
    expires: date | None = None

    @classmethod
    def read(cls, path: Path) -> Index:
        """Read an index file.

        Raises:
            IndexFileError: unreadable, too large, of a newer format, or with a bad entry or alias.
        """
        return cls.from_dict(read_document(path), str(path))

    @classmethod
    def parse(cls, text: str | bytes, where: str = "index") -> Index:
        """Read an index from its JSON text; raises IndexFileError."""
        data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        return cls.from_dict(parse_document(data, where), where)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any], where: str = "index") -> Index:
        """Read an index from its JSON object; raises IndexFileError."""
        listed = raw.get("checkpoints")
        if not isinstance(listed, list):
            raise bad(where, "no list of checkpoints in it")
        check_format(raw.get("format"), INDEX_FORMAT, where)
        if len(listed) > _MAX_ENTRIES:
            raise bad(where, f"more than {_MAX_ENTRIES} checkpoints")
        entries = tuple(Entry.from_dict(item, where) for item in listed)
        twice = sorted(id for id, count in Counter(entry.id for entry in entries).items() if count > 1)
        if twice:
            raise bad(where, f"listed twice: {', '.join(twice[:10])}")
        local = sorted({entry.name for entry in entries if entry.is_local})
        if local:
            raise bad(where, f"names with + are of one machine alone: {', '.join(local[:10])}", _NO_PLUS)
        expires = None if raw.get("expires") is None else day(raw, "expires", where)
        return cls(entries, whole(raw, "serial", 0, where), _aliases(raw, entries, where), expires)

    @classmethod
    def default(cls) -> Index:
        """The index of the wheel with what `tchub index refresh` brought, or the file that TCHUB_INDEX names."""
        from .snapshot import with_refreshed

        own = own_index()
        return cls.read(own) if own else with_refreshed(cls.shipped())

    @classmethod
    def shipped(cls) -> Index:
        """The index of the wheel."""
        return cls.parse((resources.files("tchub.hub.registry") / INDEX_FILE).read_bytes(), INDEX_FILE)

    def to_json(self) -> str:
        """The file's text: sorted, so that equal indexes are equal bytes."""
        ordered = sorted(self.entries, key=lambda entry: (entry.name, entry.semver))
        body = {
            "format": INDEX_FORMAT,
            "serial": self.serial,
            "aliases": dict(self.aliases),
            "checkpoints": [entry.as_dict() for entry in ordered],
        } | ({"expires": self.expires.isoformat()} if self.expires else {})
        return json.dumps(body, indent=2, sort_keys=True, allow_nan=False) + "\n"

    def merged(self, more: Iterable[Entry]) -> Index:
        """This index with further entries; a version of both stays as it is here (versions never change)."""
        known = {entry.id for entry in self.entries}
        further = (entry for entry in more if entry.id not in known)
        return replace(self, entries=(*self.entries, *further))

    def require_current(self, where: str, today: date) -> None:
        """Raise ExpiredIndexError after the last day on which it is taken for the newest."""
        if self.expires and today > self.expires:
            raise ExpiredIndexError(
                f"{where} was to be replaced by {self.expires}, and it is {today}",
                remedy="check this machine's clock; else newer ones are held back from you: use another --source",
                path=where,
                expires=self.expires.isoformat(),
            )

    def joined(self, other: Index) -> Index:
        """Both indexes; a version of both stays as it is here, but the newer index says whether it is deprecated."""
        newer, older = sorted((other, self), key=lambda index: index.serial, reverse=True)
        deprecated = {entry.id: entry.deprecated for entry in newer.entries}
        own = (
            entry
            if deprecated.get(entry.id, entry.deprecated) == entry.deprecated
            else replace(entry, deprecated=deprecated[entry.id])
            for entry in self.entries
        )
        both = Index(tuple(own), newer.serial, {**older.aliases, **newer.aliases})
        return both.merged(other.entries)


def own_index() -> Path | None:
    """The file that TCHUB_INDEX names."""
    text = os.environ.get("TCHUB_INDEX")
    return Path(text).expanduser() if text else None


def _aliases(raw: Mapping[str, Any], entries: Iterable[Entry], where: str) -> dict[str, str]:
    """Old name -> new name: the new one is listed, the old one is not, so that there is no chain and no circle."""
    aliases = optional(raw, "aliases", dict, {}, where)
    if len(aliases) > _MAX_ALIASES:
        raise bad(where, f"more than {_MAX_ALIASES} aliases")
    names = {entry.name for entry in entries}
    for old, new in aliases.items():
        if not _is_published(old):
            raise bad(where, f"the alias {old[:80]!r} is not a checkpoint name")
        if old in names:
            raise bad(where, f"the alias {old} is the name of a checkpoint")
        if not isinstance(new, str) or new not in names:
            raise bad(where, f"the alias {old} leads to {str(new)[:80]!r}, which is not the name of a checkpoint")
    return aliases


def _is_published(name: str) -> bool:
    try:
        parsed = CheckpointName.parse(name)
    except CheckpointNameError:
        return False
    return parsed.name == name and parsed.variant is None
