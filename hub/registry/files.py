"""Files on disk: bounded reading, comparison with sizes and sha256, folders that change by one rename."""

import json
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from ...zoo.files import file_sha256, storing
from ...zoo.untrusted import parse_json, read_plain
from ..text import printable
from .errors import IndexFileError, IntegrityError

T = TypeVar("T")

CONFIG_FILE, METRICS_FILE, CARD_FILE = "config.json", "metrics.json", "README.md"
WEIGHTS_FILE = "model.safetensors"  # equal to `zoo.models`' own name; importing that one would import torch
SCHEDULES_FILE = "schedules.json"  # of a CPU's checkpoint: what the search of a similar task begins with
MAX_BYTES = 8 << 20  # of a JSON document; an index of 2,000 checkpoints is smaller
MAX_FILE_BYTES = 1 << 30  # of a checkpoint's file; the largest architecture of the zoo has some MB
_MAX_TEXT = 20_000  # characters of one text
_REMEDY = "fetch the file again, or reinstall tchub"
_FOLDER_REMEDY = "check its permissions, or fetch the checkpoint again"
_STAGED = ".partial-"


# Documents


def read_bytes(path: Path, limit: int = MAX_BYTES, remedy: str = _REMEDY, absent: bytes | None = None) -> bytes:
    """Return the bytes of a plain file, of at most `limit`, or `absent` without one; raises IndexFileError."""
    try:
        return read_plain(path, limit)
    except (OSError, ValueError) as error:
        if absent is not None and isinstance(error, FileNotFoundError):
            return absent
        raise unusable(str(path), getattr(error, "strerror", None) or str(error), remedy) from error


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object of a checkpoint's folder; {} without the file. Raises IndexFileError."""
    return parse_document(read_bytes(path, remedy=_FOLDER_REMEDY, absent=b"{}"), str(path), _FOLDER_REMEDY)


def read_card(folder: Path) -> str:
    """Return the card of a checkpoint's folder without control characters; empty without one. Raises IndexFileError."""
    text = read_bytes(folder / CARD_FILE, remedy=_FOLDER_REMEDY, absent=b"").decode(errors="replace")
    return printable(text)


def parse_document(data: bytes, path: str, remedy: str = _REMEDY) -> dict[str, Any]:
    """Return the JSON object of a text that keeps the rules of `zoo.untrusted.parse_json`; raises IndexFileError.

    A text in it may be long, but not very, and hold no control characters, which could write anything onto a terminal.
    """
    try:
        if len(data) > MAX_BYTES:
            raise ValueError(f"it is larger than {MAX_BYTES} bytes")
        value = parse_json(data)
        _check_texts(value)
        if not isinstance(value, dict):
            raise ValueError("not a JSON object")
    except ValueError as error:
        no_json = "not JSON: " if isinstance(error, json.JSONDecodeError) else ""
        raise unusable(path, f"{no_json}{error}", remedy) from error
    return value


def convert(value: object, kind: type[T], path: str, remedy: str = _REMEDY) -> T:
    """Return a JSON value as a typed object, without unknown fields; raises IndexFileError with the field's path."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise unusable(path, str(error).replace(" - at `$.", " - at `"), remedy) from error


def check_format(raw: Mapping[str, Any], newest: int, path: str) -> None:
    """Refuse a document of a newer format, or without a format number (raises IndexFileError)."""
    number = raw.get("format")
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise unusable(path, "no format number")
    if number > newest:
        message, remedy = f"{path} has format {number}; this tchub reads up to {newest}", "pip install -U tchub"
        raise IndexFileError(message, remedy=f"upgrade tchub: {remedy}", path=path, format=number)


def unusable(path: str, reason: str, remedy: str = _REMEDY) -> IndexFileError:
    """Return the error of a file (or of an entry in it) that cannot be used."""
    return IndexFileError(f"{path} cannot be used: {reason}", remedy=remedy, path=path)


def _check_texts(value: object) -> None:
    if isinstance(value, str):
        if len(value) > _MAX_TEXT:
            raise ValueError(f"it holds a text of {len(value)} characters")
        if not value.isprintable() and not value.replace("\n", "").replace("\t", "").isprintable():
            raise ValueError(f"it holds control characters: {value[:40]!r}")
    elif isinstance(value, dict | list):
        for inner in (*value, *value.values()) if isinstance(value, dict) else value:
            _check_texts(inner)


# Sizes and digests


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file of a checkpoint: its size in bytes and its sha256 as lower-case hex."""

    size: Annotated[int, msgspec.Meta(ge=0, le=MAX_FILE_BYTES)]
    sha256: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class Outcome(StrEnum):
    """The result of a check; the first failure names the whole."""

    OK = "ok"
    NOT_INSTALLED = "not-installed"
    MISSING_FILE = "missing-file"
    NOT_A_FILE = "not-a-file"
    UNREADABLE = "unreadable"
    SIZE_MISMATCH = "size-mismatch"
    HASH_MISMATCH = "hash-mismatch"


_SENTENCES = {
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
        path: the offending file, or the folder when all is well; a text where it is not on this disk.
        expected, actual: what differs: bytes, or sha256.
    """

    outcome: Outcome
    path: Path | str
    expected: int | str | None = None
    actual: int | str | None = None

    @property
    def ok(self) -> bool:
        return self.outcome is Outcome.OK

    @property
    def message(self) -> str:
        detail = f": expected {self.expected}, found {self.actual}" if self.expected is not None else ""
        return f"{self.path} {_SENTENCES[self.outcome]}{detail}"

    def require(self, remedy: str) -> None:
        """Raise IntegrityError unless all is well."""
        if not self.ok:
            fields = {"path": str(self.path), "expected": self.expected, "actual": self.actual}
            raise IntegrityError(self.message, remedy=remedy, outcome=self.outcome.value, **fields)


def is_folder(path: Path) -> bool:
    """Return True for a folder, and for a path that may not be looked at: its check then calls it unreadable."""
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def verify_folder(
    folder: Path, files: Mapping[str, FileRecord], corrected: Mapping[str, FileRecord] | None = None
) -> Verification:
    """Check size and sha256 of every listed file; by `corrected`, another listing of the version, a file may be too."""
    for name, record in sorted(files.items()):
        check, other = verify_file(folder / name, record), (corrected or {}).get(name)
        if not check.ok and not (other and verify_file(folder / name, other).ok):
            return check
    return Verification(Outcome.OK, folder)


def verify_file(path: Path, record: FileRecord) -> Verification:
    """Check one file; the size is compared before a byte is read."""
    try:
        info = path.lstat()
        if not stat.S_ISREG(info.st_mode):
            return Verification(Outcome.NOT_A_FILE, path)
        if info.st_size != record.size:
            return Verification(Outcome.SIZE_MISMATCH, path, record.size, info.st_size)
        actual = file_sha256(path)
    except (FileNotFoundError, NotADirectoryError):
        return Verification(Outcome.MISSING_FILE, path)
    except OSError:
        return Verification(Outcome.UNREADABLE, path)
    if actual != record.sha256:
        return Verification(Outcome.HASH_MISMATCH, path, record.sha256, actual)
    return Verification(Outcome.OK, path)


def records_of(folder: Path, names: tuple[str, ...]) -> dict[str, FileRecord]:
    """Return size and sha256 of files as they are now."""
    return {name: FileRecord((folder / name).stat().st_size, file_sha256(folder / name)) for name in names}


# Folders that appear and go by one rename, so that a killed process leaves none half-written. One process at a time
# calls these; whatever raises OSError leaves the earlier folder.


def leftovers(parent: Path) -> list[Path]:
    """Return folders that are being written or removed, or, while nobody writes, were; [] for an unreadable parent."""
    with suppress(OSError):
        return sorted(path for path in parent.iterdir() if path.name.startswith(_STAGED))
    return []


@contextmanager
def staged_folder(parent: Path) -> Iterator[Path]:
    """Make an empty folder in `parent` (one file system: a rename is atomic); remove it after, unless it was put."""
    parent.mkdir(parents=True, exist_ok=True)
    for leftover in leftovers(parent):
        shutil.rmtree(leftover, ignore_errors=True)
    # Not by tempfile, whose folders only their owner may read: a cache is shared, and copied to web servers.
    folder = parent / f"{_STAGED}{secrets.token_hex(4)}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def put_folder(folder: Path, final: Path, last: str) -> None:
    """Move a staged folder to its final path; into one that is there file by file, and `last` as the last one."""
    files = sorted(folder.iterdir(), key=lambda path: path.name == last)
    for path in files:
        with path.open("rb") as file:
            os.fsync(file.fileno())  # on the disk before the rename that makes it count
    if not final.is_dir():
        os.rename(folder, final)
        return
    for path in files:
        os.replace(path, final / path.name)


def remove_folder(folder: Path) -> None:
    """Remove a folder, or a leftover; it is gone by one rename."""
    if not folder.name.startswith(_STAGED):
        folder = folder.rename(folder.with_name(f"{_STAGED}{folder.name}"))
    shutil.rmtree(folder)


def storing_in(path: Path, variable: str = "TCHUB_CACHE") -> AbstractContextManager[None]:
    """Turn the operating system's errors into StorageError; `variable` moves what could not be written."""
    return storing(path, f"free some space, or set {variable} to a folder you may write; nothing was half-written")
