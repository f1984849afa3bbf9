"""Files that survive a kill and a full disk: replaced whole, and written by one process at a time."""

import errno
import hashlib
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from .errors import TchubError

# Errors of the operating system for those who may read, but not write.
NO_PERMISSION = (errno.EROFS, errno.EACCES, errno.EPERM)


class StorageError(TchubError):
    """A file or folder cannot be written: full, read-only, in use. Fields: path, errno where the system gave one."""

    @property
    def read_only(self) -> bool:
        return self.fields.get("errno") in NO_PERMISSION


class LockError(TchubError):
    """Another process holds a lock. Field: path."""


_FREE = "free some disk space, then run the same command again: what was measured before is kept"


@contextmanager
def storing(path: Path, remedy: str = _FREE) -> Iterator[None]:
    """Turn the operating system's errors while a file or folder is written into StorageError."""
    try:
        yield
    except OSError as error:
        problem = f"{path} cannot be written: {error.strerror or error}"
        raise StorageError(problem, remedy=remedy, path=str(path), errno=error.errno) from error


def file_sha256(path: Path | str) -> str:
    """Return the sha256 of a file as lower-case hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_atomically(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Replace one file, so that a reader sees the old one or the new one; raises OSError, and leaves what was there.

    Those may read it whom the umask lets.

    Args:
        data: all of it, or its parts in their order.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with partial.open("xb") as file:
            file.writelines([data] if isinstance(data, bytes) else data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_files(folder: Path, files: Mapping[str, bytes | Iterable[bytes]]) -> None:
    """Write files into a folder in the order given, each replaced whole; the folder is made.

    Raises:
        StorageError: one cannot be written; it is as it was before.
    """
    with storing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            write_atomically(folder / name, data)


@contextmanager
def locked(path: Path, seconds: float = 0.0) -> Iterator[None]:
    """Hold a lock file. It stays where it is, but the lock ends with the process that holds it, killed or not.

    Args:
        path: created when missing; its folder exists.
        seconds: how long to wait for another process.

    Raises:
        LockError: another process held it for that long.
    """
    import filelock  # brings asyncio, and most commands lock nothing

    lock = filelock.FileLock(path, timeout=seconds)
    try:
        lock.acquire()
    except filelock.Timeout as error:
        remedy = "wait for it, or end it; the lock frees itself when its process ends"
        raise LockError(f"another process has held {path} for {seconds:g} s", remedy=remedy, path=str(path)) from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def locked_folder(folder: Path, option: str = "--out") -> Iterator[None]:
    """Keep other processes out of a folder, which is made when it is not there; nothing is waited for.

    Args:
        option: names another folder, for the remedies.

    Raises:
        LockError: another process works in it.
        StorageError: it cannot be written.
    """
    other = f"choose another folder with {option}"
    with ExitStack() as stack:
        with storing(folder, other):
            folder.mkdir(parents=True, exist_ok=True)
            try:
                stack.enter_context(locked(folder / ".lock"))
            except LockError as error:
                problem = f"another process works in {folder}"
                raise LockError(problem, remedy=f"wait for it, or {other}", path=str(folder)) from error
        yield
