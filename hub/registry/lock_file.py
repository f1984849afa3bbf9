"""The lock file: which version of each checkpoint a project uses, down to the sha256 of every file.

`tchub.lock` holds enough to fetch a checkpoint without an index, and equal pins are equal bytes, so that it can be
committed and compared.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from ...zoo.files import locked, write_atomically
from .entry import CheckpointName, Entry
from .errors import IndexFileError
from .files import check_format, parse_document, read_bytes, storing_in, unusable
from .index import Index

LOCK_FILE = "tchub.lock"
LOCK_FORMAT = 1
# The fields of a pin, besides the name: where the files are, what they must be, and what can load them.
_FIELDS = (
    "version", "arch", "family", "format", "feature_schema", "feature_version", "tvm_range",
    "weights_licence", "data_licence", "sources", "revision", "files",
)  # fmt: skip
_MAX_PINS = 1000


@dataclass(frozen=True)
class LockFile:
    """The pins of a project: name -> what is pinned, without scores and data."""

    path: Path
    pins: Mapping[str, Entry] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return a lock file; raises IndexFileError where it is missing, malformed, unsafe or of a newer format."""
        if not path.exists():
            remedy = "make it: tchub pull NAME --lock"
            raise IndexFileError(f"there is no lock file {path}", remedy=remedy, path=str(path))
        try:
            raw = parse_document(read_bytes(path), str(path))
            check_format(raw, LOCK_FORMAT, str(path))
            pins = raw.get("checkpoints")
            if not isinstance(pins, dict) or len(pins) > _MAX_PINS:
                raise unusable(str(path), f"no object of up to {_MAX_PINS} checkpoints in it")
            bodies = {name: body | {"name": name} if isinstance(body, dict) else body for name, body in pins.items()}
            entries = {name: Entry.from_dict(body, str(path)) for name, body in bodies.items()}
            if local := [name for name, entry in entries.items() if entry.is_local]:
                raise unusable(str(path), f"{', '.join(local)} is of one machine alone")
            return cls(path, entries)
        except IndexFileError as error:
            if "format" not in error.fields:  # else it is of a newer tchub
                error.remedy = "restore it, or make it again: tchub pull NAME --lock"
            raise

    def entry(self, name: str | None, index: Index) -> Entry:
        """Return a pin, with the facts and the card of the index where that lists the same model.

        Args:
            name: `arch-family`, or `arch-family@X.Y.Z`, which must be the pinned version; None for the only pin.

        Raises:
            IndexFileError: it is not pinned, another version is, or the index lists another config or other weights.
        """
        if name is None:
            if len(self.pins) != 1:
                remedy = f"name one: {', '.join(sorted(self.pins))}" if self.pins else "pin one: tchub pull NAME --lock"
                raise self._error(f"{self.path} pins {len(self.pins)} checkpoints", remedy)
            (name,) = self.pins
        wanted = CheckpointName.parse(name)
        pin = self.pins.get(wanted.name)
        if pin is None or (wanted.version and str(wanted.version) != pin.version):
            state = f"pins {pin.id}, not {name}" if pin else f"does not pin {name}"
            raise self._error(f"{self.path} {state}", f"pin it: tchub pull {name} --lock", name=name)
        listed = next((entry for entry in index.entries if entry.id == pin.id), None)
        if listed is None:
            return pin
        self._require_same(pin, listed)
        sources = tuple(dict.fromkeys((*pin.sources, *listed.sources)))
        return replace(listed, sources=sources, revision=listed.revision or pin.revision)

    def with_pins(self, entries: Iterable[Entry]) -> Self:
        """Return the lock file with these pinned, in place of other versions of the same names."""
        pins = dict(self.pins)
        for entry in entries:
            if entry.is_local:
                message = f"{entry.id} was adapted on this machine, so nobody else could fetch it"
                remedy = "pin the checkpoint that it was adapted from, or publish it first"
                raise self._error(message, remedy, name=entry.name)
            before = pins.get(entry.name)
            if before and before.version == entry.version:
                self._require_same(before, entry)
            pins[entry.name] = entry
        return replace(self, pins=pins)

    def to_json(self) -> str:
        pins = {name: {key: entry.as_dict()[key] for key in _FIELDS} for name, entry in self.pins.items()}
        return json.dumps({"format": LOCK_FORMAT, "checkpoints": pins}, indent=2, sort_keys=True) + "\n"

    def _require_same(self, pin: Entry, listed: Entry) -> None:
        if differing := pin.changed_in(listed):
            raise self._error(
                f"the index lists other files for {pin.id} than {self.path}: {', '.join(differing)} differ",
                "versions never change: ask the index's maintainers; to accept the change remove the pin by hand",
                name=pin.name,
                files=differing,
            )

    def _error(self, message: str, remedy: str, **fields: Any) -> IndexFileError:
        return IndexFileError(message, remedy=remedy, path=str(self.path), **fields)


def pin(path: Path, entries: Iterable[Entry]) -> LockFile:
    """Add entries to a lock file, or make it; other names in it stay, whoever writes at the same time.

    Raises:
        IndexFileError: the file cannot be used, or is at odds with an entry; or it is a folder.
        StorageError: it cannot be written; it is as it was before.
        LockError: another process has been writing it for two minutes.
    """
    if path.is_dir():
        raise IndexFileError(f"{path} is a folder", remedy=f"name a file, e.g. {path / LOCK_FILE}", path=str(path))
    with storing_in(path, "--lock-file"), locked(path.with_name(f".{path.name}.writing"), seconds=120.0):
        lock = (LockFile.read(path) if path.exists() else LockFile(path)).with_pins(entries)
        write_atomically(path, lock.to_json().encode())
    return lock
