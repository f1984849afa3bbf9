"""Are a checkpoint's files what the index says? A named outcome, never a bare bool."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from .entry_files import FileRecord
from .errors import IntegrityError

_CHUNK = 1 << 20


class Outcome(StrEnum):
    """What a check found; the first failure in this order names the whole."""

    OK = "ok"
    NOT_INSTALLED = "not-installed"
    MISSING_FILE = "missing-file"
    NOT_A_FILE = "not-a-file"
    UNREADABLE = "unreadable"
    SIZE_MISMATCH = "size-mismatch"
    HASH_MISMATCH = "hash-mismatch"


_IN_WORDS = {
    Outcome.OK: "is whole",
    Outcome.NOT_INSTALLED: "is not on this machine",
    Outcome.MISSING_FILE: "is missing",
    Outcome.NOT_A_FILE: "is a link or a folder, not a plain file",
    Outcome.UNREADABLE: "cannot be read",
    Outcome.SIZE_MISMATCH: "has the wrong size (truncated, or another file)",
    Outcome.HASH_MISMATCH: "has the wrong sha256 (changed or damaged)",
}


@dataclass(frozen=True)
class Verification:
    """The outcome for one folder.

    Attributes:
        path: the offending file, or the folder when all is well.
        expected, actual: what differs: bytes, or sha256.
    """

    outcome: Outcome
    path: Path
    expected: int | str | None = None
    actual: int | str | None = None

    @property
    def ok(self) -> bool:
        """True for Outcome.OK alone."""
        return self.outcome is Outcome.OK

    @property
    def message(self) -> str:
        """One sentence."""
        detail = f": expected {self.expected}, found {self.actual}" if self.expected is not None else ""
        return f"{self.path} {_IN_WORDS[self.outcome]}{detail}"

    def require(self, remedy: str) -> None:
        """Raise IntegrityError unless all is well."""
        if not self.ok:
            fields = {"outcome": self.outcome.value, "path": str(self.path)}
            raise IntegrityError(self.message, remedy=remedy, expected=self.expected, actual=self.actual, **fields)


def is_folder(path: Path) -> bool:
    """Whether a folder is there; what may not be looked at may be one, and its check then calls it unreadable."""
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def verify_folder(folder: Path, files: Mapping[str, FileRecord]) -> Verification:
    """Check size and sha256 of every listed file; files that are not listed are not looked at, nor loaded."""
    for name, record in sorted(files.items()):
        found = verify_file(folder / name, record)
        if not found.ok:
            return found
    return Verification(Outcome.OK, folder)


def verify_file(path: Path, record: FileRecord) -> Verification:
    """Check one file; the size is compared before a byte is read."""
    try:
        info = path.lstat()
        if not stat.S_ISREG(info.st_mode):
            return Verification(Outcome.NOT_A_FILE, path)
        if info.st_size != record.size:
            return Verification(Outcome.SIZE_MISMATCH, path, record.size, info.st_size)
        actual = sha256_of(path)
    except (FileNotFoundError, NotADirectoryError):
        return Verification(Outcome.MISSING_FILE, path)
    except OSError:
        return Verification(Outcome.UNREADABLE, path)
    if actual != record.sha256:
        return Verification(Outcome.HASH_MISMATCH, path, record.sha256, actual)
    return Verification(Outcome.OK, path)


def sha256_of(path: Path) -> str:
    """The sha256 of a file as lower-case hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def records_of(folder: Path, names: tuple[str, ...]) -> dict[str, FileRecord]:
    """Size and sha256 of files as they are now."""
    return {name: FileRecord((folder / name).stat().st_size, sha256_of(folder / name)) for name in names}
