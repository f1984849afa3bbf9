"""Checkpoints on this machine: a cache of fetched ones, and a home for those that were adapted here.

Layout: `<root>/<name>/<version>/{config.json, model.safetensors, schedules.json, README.md, metrics.json, entry.json}`,
where `entry.json` is the index entry the files were checked against. A version appears whole, by one rename, or not at
all. Of one that is repaired, or whose card was corrected, each file is replaced by a rename: at any moment it is the
old or the new one, and both count.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from ...zoo.files import LockError, StorageError, locked, write_atomically
from ...zoo.plain_json import json_file
from .entry import RECORD, CheckpointName, Entry, Version
from .errors import CheckpointNameError, IndexFileError
from .files import (
    Outcome,
    Verification,
    is_folder,
    parse_document,
    put_folder,
    read_bytes,
    read_json,
    remove_folder,
    staged_folder,
    storing_in,
    verify_folder,
)

STAND_INS = "stand-ins.json"


def cache_root() -> Path:
    """Return the folder of fetched checkpoints: in TCHUB_CACHE, else in the user's cache folder."""
    return _root("TCHUB_CACHE", platformdirs.user_cache_dir("tchub"))


def home_root() -> Path:
    """Return the folder of checkpoints adapted here: in TCHUB_HOME, else in the user's data folder."""
    return _root("TCHUB_HOME", platformdirs.user_data_dir("tchub"))


def _root(variable: str, default: str) -> Path:
    return Path(os.environ.get(variable) or default).expanduser() / "checkpoints"


@dataclass(frozen=True)
class Store:
    """A folder of checkpoints, which `variable` moves. Nothing is created before the first write."""

    root: Path
    variable: str = "TCHUB_CACHE"

    def path(self, entry: Entry) -> Path:
        return self.root / entry.name / entry.version

    def entries(self) -> list[Entry]:
        """Return stored entries by name and version; a folder without a readable record is no checkpoint."""
        with suppress(PermissionError):
            records = map(self.record, (path.parent for path in sorted(self.root.glob(f"*/*/{RECORD}"))))
            return [entry for entry in records if entry is not None]
        return []

    def record(self, folder: Path) -> Entry | None:
        """Return the entry that a stored version was checked against; None for a folder that is no version."""
        try:
            raw = parse_document(read_bytes(folder / RECORD), str(folder / RECORD))
            entry = Entry.from_dict(raw, str(folder / RECORD))
        except IndexFileError:
            return None
        return entry if self.path(entry) == folder else None

    def verify(self, entry: Entry) -> Verification:
        """Check the stored files against an entry; a card or metrics that were corrected since may be as they came."""
        folder = self.path(entry)
        if not is_folder(folder):
            return Verification(Outcome.NOT_INSTALLED, folder)
        stored = self.record(folder)
        if stored is None or stored.changed_in(entry):
            return verify_folder(folder, entry.files)
        return verify_folder(folder, stored.files, entry.files)

    def require(self, entry: Entry) -> Path:
        """Return the folder of a stored version, verified; raises IntegrityError."""
        check = self.verify(entry)
        if not check.ok and is_folder(self.path(entry).parent):
            # Once more while nobody replaces it: by now it may be repaired.
            with suppress(StorageError, LockError), self.locked(entry.name):
                check = self.verify(entry)
        remedy = f"run: tchub pull {entry.id}" if not entry.is_local else f"adapt again; remove {check.path}"
        check.require(f"check the permissions; else {remedy}" if check.outcome is Outcome.UNREADABLE else remedy)
        return self.path(entry)

    def add(self, entry: Entry, fill: Callable[[Path], None]) -> Path:
        """Store a version: `fill` writes its files into an empty folder, which is checked and then renamed.

        A version that is here and whole is left as it is; one that is damaged, or has an older card, is replaced.

        Raises:
            IntegrityError: what `fill` wrote is not what the entry says.
            StorageError: the store cannot be written, or holds this version with another model; nothing changed.
            LockError: another process has been writing this name for two minutes.
        """

        def filled(folder: Path) -> Entry:
            fill(folder)
            return entry

        if not self._holds(entry):  # before the lock, which a read-only store cannot take
            with self.locked(entry.name):
                if not self._holds(entry):
                    self._put(entry.name, filled, "try again, or another --source")
        return self.path(entry)

    def add_new(self, name: str, fill: Callable[[Path, str], Entry]) -> Entry:
        """Store the next version of a local checkpoint: 1.0.0, 1.0.1, ... Never overwrites; raises StorageError.

        `fill` writes the files for the given version into the folder, and returns the entry for them.
        """
        CheckpointName.parse(name)
        with self.locked(name):
            newest = max((version for version, _ in self.versions(name)), default=None)
            version = str(newest.next_patch() if newest else Version(1, 0, 0))
            return self._put(name, lambda folder: fill(folder, version), "this is a fault of the writer")

    def stand_ins(self) -> dict[str, str]:
        """Return the checkpoint that stands for each name under which adapting stored nothing."""
        return {name: str(other) for name, other in read_json(self.root / STAND_INS).items()}

    def stand_in(self, name: str, other: str) -> None:
        """Let a checkpoint stand for a name until one is stored under it; raises StorageError."""
        with self.locked(STAND_INS), storing_in(self.root, self.variable):
            write_atomically(self.root / STAND_INS, json_file(self.stand_ins() | {name: other}))

    def _put(self, name: str, fill: Callable[[Path], Entry], remedy: str) -> Entry:
        with storing_in(self.root / name, self.variable), staged_folder(self.root / name) as folder:
            entry = fill(folder)
            verify_folder(folder, entry.files).require(remedy)
            (folder / RECORD).write_bytes(json_file(entry.as_dict()))
            put_folder(folder, self.path(entry), last=RECORD)
        return entry

    def versions(self, name: str) -> list[tuple[Version, Path]]:
        """Return the folders of a name that are called like versions, oldest first; raises OSError."""
        versions = []
        for path in (self.root / name).iterdir() if (self.root / name).is_dir() else ():
            with suppress(CheckpointNameError):
                versions.append((Version.parse(path.name), path))
        return sorted(versions)

    def remove(self, folder: Path) -> None:
        """Remove a version or a leftover, only while `locked`; raises StorageError."""
        with storing_in(folder, self.variable):
            remove_folder(folder)

    @contextmanager
    def locked(self, name: str, seconds: float = 120.0) -> Iterator[None]:
        """Be the only process that writes versions of `name`; raises LockError after `seconds`, or StorageError."""
        with ExitStack() as stack:
            with storing_in(self.root, self.variable):
                self.root.mkdir(parents=True, exist_ok=True)
                stack.enter_context(locked(self.root / f".{name}.lock", seconds))
            yield

    def _holds(self, entry: Entry) -> bool:
        """Return True for a version that is here as it is listed; one that is whole with another model is an error."""
        path = self.path(entry)
        stored = self.record(path)
        if stored and stored.changed_in(entry) and verify_folder(path, stored.files).ok:
            raise StorageError(
                f"{path} is whole, but the index lists other files for {entry.id}; versions never change",
                remedy=f"ask the index's maintainers; to accept the change remove {path}",
                path=str(path),
            )
        return stored is not None and verify_folder(path, entry.files).ok
