"""Checkpoints on this machine: a cache of fetched ones, and a home for those that were adapted here.

Layout: `<root>/<name>/<version>/{config.json, the weights, README.md, metrics.json, entry.json}`, where
`entry.json` is the index entry the files were checked against. A version appears whole, by one rename, or not
at all; one that is replaced is back at the next lock when a process was killed before the new one was there.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from . import renames
from .entry import Entry
from .entry_files import RECORD
from .errors import (
    NO_LEAVE,
    CheckpointNameError,
    ImmutableVersionError,
    IndexFileError,
    NotInstalledError,
    StoreError,
)
from .exclusive import exclusive
from .fields import read_document
from .names import CheckpointName, Version
from .verify import Outcome, Verification, is_folder, verify_folder


def cache_root() -> Path:
    """Where fetched checkpoints live: TCHUB_CACHE, else the user's cache folder."""
    return _root("TCHUB_CACHE", platformdirs.user_cache_dir("tchub"))


def home_root() -> Path:
    """Where checkpoints adapted on this machine live (not a cache: losing them costs measurements).

    TCHUB_HOME, else the user's data folder.
    """
    return _root("TCHUB_HOME", platformdirs.user_data_dir("tchub"))


def _root(variable: str, default: str) -> Path:
    return Path(os.environ.get(variable) or default).expanduser() / "checkpoints"


@dataclass(frozen=True)
class Store:
    """A folder of checkpoints. Nothing is created before the first write.

    Attributes:
        root: the folder that holds one folder a name.
        variable: the environment variable that moves it, named in remedies.
    """

    root: Path
    variable: str = "TCHUB_CACHE"

    def path(self, entry: Entry) -> Path:
        """Where this version is, or would be."""
        return self.root / entry.name / entry.version

    def entries(self) -> list[Entry]:
        """What is stored, by name and version; a folder without a readable record is no checkpoint."""
        with suppress(PermissionError):
            found = map(self.record, (path.parent for path in sorted(self.root.glob(f"*/*/{RECORD}"))))
            # What went aside for a replacement sorts before the versions, and counts while nothing is in its place.
            return list({entry.id: entry for entry in found if entry is not None}.values())
        return []

    def get(self, name: str, version: str | None = None) -> Entry | None:
        """The stored entry of this version, or of the newest one."""
        found = [e for e in self.entries() if e.name == name and version in (None, e.version)]
        return max(found, key=lambda entry: entry.semver, default=None)

    def verify(self, entry: Entry) -> Verification:
        """Check the stored files against an entry; a card or metrics that were corrected since may be as they came."""
        folder = self.path(entry)
        if not is_folder(folder):
            return Verification(Outcome.NOT_INSTALLED, folder)
        stored = self.record(folder)
        return verify_folder(folder, (entry if stored is None or stored.changed_in(entry) else stored).files)

    def require(self, entry: Entry) -> Path:
        """The folder of a stored version, verified.

        Raises:
            NotInstalledError: it is not here.
            IntegrityError: its files are not what the entry says.
        """
        found = self.verify(entry)
        if not found.ok:
            found = self._verify_undisturbed(entry)
        if found.outcome is Outcome.NOT_INSTALLED:
            raise NotInstalledError(
                f"{entry.id} is not on this machine", remedy=f"run: tchub pull {entry.id}", name=entry.name
            )
        remedy = f"run: tchub pull {entry.id}" if not entry.is_local else f"adapt again; remove {found.path}"
        found.require(f"check the permissions; else {remedy}" if found.outcome is Outcome.UNREADABLE else remedy)
        return self.path(entry)

    def _verify_undisturbed(self, entry: Entry) -> Verification:
        """Check while nobody replaces it: between two renames neither the old copy nor the new one is in its place."""
        if is_folder(self.path(entry).parent):  # no lock file is made for what was never here
            with suppress(StoreError), self.locked(entry.name):
                return self.verify(entry)
        return self.verify(entry)

    def add(self, entry: Entry, fill: Callable[[Path], None]) -> Path:
        """Store a version: `fill` writes its files into an empty folder, which is checked and then renamed.

        A version that is here and whole is left as it is; one that is damaged, or has an older card, is replaced.

        Raises:
            IntegrityError: what `fill` wrote is not what the entry says.
            ImmutableVersionError: the index changed what this version is.
            StoreError: the store cannot be written; what was there before is untouched.
        """
        if self._holds(entry):  # also before the lock, which a read-only store cannot take
            return self.path(entry)
        with self.locked(entry.name):
            if self._holds(entry):
                return self.path(entry)
            with self._staging(entry.name) as staging:
                fill(staging)
                verify_folder(staging, entry.files).require("try again, or another --source")
                self._commit(entry, staging)
        return self.path(entry)

    def add_new(self, name: str, fill: Callable[[Path, str], Entry]) -> Entry:
        """Store the next version of a local checkpoint: 1.0.0, 1.0.1, ... Never overwrites.

        Args:
            name: e.g. `tcl-epyc+local`.
            fill: writes the files for the given version into the folder, and returns the entry for them.

        Raises:
            StoreError: the store cannot be written.
        """
        CheckpointName.parse(name)
        with self.locked(name), self._staging(name) as staging:
            entry = fill(staging, str(self.next_version(name)))
            verify_folder(staging, entry.files).require("this is a fault of the writer")
            self._commit(entry, staging)
        return entry

    def next_version(self, name: str) -> Version:
        """The version after the newest folder of this name, whole or not; 1.0.0 for the first."""
        folder = self.root / name
        found = [_version_of(path) for path in folder.iterdir()] if folder.is_dir() else []
        taken = [version for version in found if version is not None]
        return max(taken).next_patch() if taken else Version(1, 0, 0)

    def _holds(self, entry: Entry) -> bool:
        """Whether this version is here, as it is listed; one that is whole with another model is not to be replaced."""
        path = self.path(entry)
        stored = self.record(path)
        if stored and stored.changed_in(entry) and verify_folder(path, stored.files).ok:
            raise ImmutableVersionError(
                f"{path} is whole, but the index lists other files for {entry.id}; versions never change",
                remedy=f"ask the index's maintainers; to accept the change remove {path}",
                path=str(path),
            )
        return stored is not None and verify_folder(path, entry.files).ok

    def _commit(self, entry: Entry, staging: Path) -> None:
        (staging / RECORD).write_text(json.dumps(entry.as_dict(), indent=2, sort_keys=True) + "\n", encoding="utf-8")
        renames.put(staging, self.path(entry))

    def record(self, folder: Path) -> Entry | None:
        """The entry that a stored version was checked against; None for a folder that is no version of a checkpoint."""
        try:
            entry = Entry.from_dict(read_document(folder / RECORD), str(folder / RECORD))
        except IndexFileError:
            return None
        return entry if self.path(entry) == renames.place_of(folder) else None

    @contextmanager
    def _staging(self, name: str) -> Iterator[Path]:
        """A folder beside the versions of `name`."""
        with self.guarded(self.root / name), renames.staged(self.root / name) as staging:
            yield staging

    def leftovers(self, name: str) -> list[Path]:
        """Folders of `name` that a process was writing or removing; while `locked`, each is of one that was killed."""
        return renames.leftovers(self.root / name)

    def remove(self, folder: Path) -> None:
        """Remove a version or a leftover, only while `locked`; raises StoreError."""
        with self.guarded(folder):
            renames.remove(folder)

    @contextmanager
    def locked(self, name: str, seconds: float = 120.0) -> Iterator[None]:
        """Be the only process that writes versions of `name`; raises StoreError after `seconds` of waiting."""
        with ExitStack() as held:
            with self.guarded(self.root):
                self.root.mkdir(parents=True, exist_ok=True)
                held.enter_context(exclusive(self.root / f".{name}.lock", seconds))
                renames.put_back(self.root / name)
            yield

    @contextmanager
    def guarded(self, path: Path) -> Iterator[None]:
        """Turn the operating system's errors into StoreError with a remedy."""
        try:
            yield
        except OSError as error:
            raise store_error(error, Path(error.filename or path), self.variable) from error


def _version_of(path: Path) -> Version | None:
    """The version that a folder is called, or None for a stray or partial one."""
    try:
        return Version.parse(path.name)
    except CheckpointNameError:
        return None


def store_error(error: OSError, path: Path, variable: str = "TCHUB_CACHE") -> StoreError:
    """The StoreError for an error of the operating system."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        message, remedy = (
            f"no space left to write {path}",
            f"free some space, or set {variable} to a larger disk",
        )
    elif error.errno in NO_LEAVE:
        message, remedy = (
            f"{path} cannot be written: {error.strerror}",
            f"set {variable} to a folder you may write",
        )
    elif error.errno in (errno.ENOTDIR, errno.EEXIST):
        message, remedy = (
            f"{path} cannot be written: a file is where a folder should be",
            f"set {variable} to another folder",
        )
    else:
        message, remedy = (
            f"{path} cannot be written: {error.strerror or error}",
            f"check the disk, or set {variable}",
        )
    return StoreError(message, remedy=f"{remedy}; nothing was half-written", path=str(path), errno=error.errno)
