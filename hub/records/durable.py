"""Lines of a file that are on disk, whole, once they were written: what was measured is owed to the user.

A disk may be full, and a process may be killed at any moment.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ...zoo.errors import TchubError

# Data and size, not the time of the change: a third less to wait for where a system can tell them apart.
_sync = getattr(os, "fdatasync", os.fsync)


class StorageError(TchubError):
    """What was measured cannot be written, e.g. because the disk is full."""


def storage_error(path: Path, why: str) -> StorageError:
    """The error for a file or folder that takes no more."""
    return StorageError(
        f"{path} cannot be written: {why}",
        remedy="free some disk space, then run the same command again: what was measured before is kept",
        path=str(path),
    )


@contextmanager
def kept_on_disk(path: Path) -> Iterator[None]:
    """Around what writes a file or folder: StorageError where the disk takes no more."""
    try:
        yield
    except OSError as error:
        raise storage_error(path, error.strerror or str(error)) from error


def append(path: Path, text: str, sync: bool = True) -> None:
    """Append whole lines; lines that do not fit leave the file as it was.

    Args:
        sync: wait until they are on disk, so that they outlive a power failure, not a killed process alone.

    Raises:
        StorageError: they cannot be written.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            _append(descriptor, text.encode(), sync)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise storage_error(path, error.strerror or str(error)) from error


def _append(descriptor: int, data: bytes, sync: bool) -> None:
    before = os.fstat(descriptor).st_size
    try:
        left = memoryview(data)
        while left:  # once, unless the disk is full: the second write then says so
            left = left[os.write(descriptor, left) :]
        if sync:
            _sync(descriptor)
    except OSError:
        os.ftruncate(descriptor, before)
        raise


def drop_torn_line(path: Path) -> bool:
    """Cut a last line that a killed process left half-written; returns whether there was one.

    One that lacks its line feed alone is completed.
    """
    if not path.exists():
        return False
    with path.open("r+b") as file:
        start = _last_line(file)
        file.seek(start)
        tail = file.read()
        if not tail:
            return False
        if _is_json(tail):
            file.write(b"\n")
        else:
            file.truncate(start)
    return True


def _last_line(file: BinaryIO, step: int = 1 << 16) -> int:
    """Where what follows the last line feed begins."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - step)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
