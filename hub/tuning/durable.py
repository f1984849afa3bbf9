"""Whether what TVM's JSON database was given is on disk.

Its `commit_tuning_record` appends a line and does not look at what became of it: on a full disk a tuning run would go
on, and the measurements would be nowhere.
"""

from __future__ import annotations

import os
from pathlib import Path

from ...zoo.errors import TchubError

_FILES = ("database_workload.json", "database_tuning_record.json")


class StorageError(TchubError):
    """What was measured cannot be written, e.g. because the disk is full."""


def storage_error(path: Path, why: str) -> StorageError:
    """The error for a file or folder that takes no more."""
    return StorageError(
        f"{path} cannot be written: {why}",
        remedy="free some disk space, then run the same command again: what was measured before is kept",
        path=str(path),
    )


class StoredLines:
    """Looks at the database's files after each commit.

    Args:
        folder: of the database.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._size = _size(folder / _FILES[-1])

    def check(self) -> None:
        """To be called after each record that was committed: it must have made the file grow by whole lines.

        Raises:
            StorageError: the record is not on disk, or only a part of it.
        """
        before, self._size = self._size, _size(self._folder / _FILES[-1])
        if self._size > before and all(_ends_whole(self._folder / name) for name in _FILES):
            return
        raise storage_error(self._folder, "a record was not stored whole, as happens on a full disk")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _ends_whole(path: Path) -> bool:
    """Whether the last line was written to its end."""
    if not _size(path):
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
