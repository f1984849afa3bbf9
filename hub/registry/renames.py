"""Folders that appear, are replaced and go by renames, so that none is ever seen half, whenever a process is killed.

Everything here is done by one process at a time; what raises OSError leaves what was there before.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX, _REPLACED, _REMOVED = ".partial-", ".old", ".gone"


def leftovers(parent: Path) -> list[Path]:
    """Folders that are being written, replaced or removed; while nobody does, each is of a process that was killed.

    None are known of a folder that cannot be read.
    """
    with suppress(OSError):
        return sorted(path for path in parent.iterdir() if path.name.startswith(_PREFIX))
    return []


@contextmanager
def staged(parent: Path) -> Iterator[Path]:
    """An empty folder in `parent` (one file system: a rename is atomic), removed after unless it was `put`."""
    parent.mkdir(parents=True, exist_ok=True)
    for leftover in leftovers(parent):
        shutil.rmtree(leftover, ignore_errors=True)
    # Not by tempfile, whose folders are for their maker alone: a cache is shared, and copied to web servers.
    folder = parent / f"{_PREFIX}{secrets.token_hex(4)}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def put(folder: Path, final: Path) -> None:
    """Let a staged folder take its place; what is there goes aside first, as no folder is renamed onto another.

    A process that is killed in between leaves what was there aside, for `put_back`.
    """
    _flush(folder)
    aside = final.with_name(f"{_PREFIX}{final.name}{_REPLACED}")
    if final.exists():
        os.rename(final, aside)
    try:
        os.rename(folder, final)
    except BaseException:
        put_back(final.parent)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def put_back(parent: Path) -> None:
    """Undo the replacements that were killed before the new folder was in its place."""
    for folder in leftovers(parent):
        if (final := place_of(folder)) != folder and not final.exists():
            os.rename(folder, final)


def place_of(folder: Path) -> Path:
    """Where a folder was before it went aside for another; of any other folder where it is."""
    if folder.name.startswith(_PREFIX) and folder.name.endswith(_REPLACED):
        return folder.with_name(folder.name.removeprefix(_PREFIX).removesuffix(_REPLACED))
    return folder


def remove(folder: Path) -> None:
    """Remove a folder, or a leftover; it is gone by one rename."""
    if not folder.name.startswith(_PREFIX):
        folder = folder.rename(folder.with_name(f"{_PREFIX}{folder.name}{_REMOVED}"))
    shutil.rmtree(folder)


def _flush(folder: Path) -> None:
    """Have the files on the disk before the rename that makes them count."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
