"""Writing a few files so that no reader ever sees half of one."""

from __future__ import annotations

from pathlib import Path

from ..files import write_atomically
from .errors import CheckpointError


def write_folder(folder: Path, files: dict[str, bytes]) -> None:
    """Writes files in the order given, each beside its target and then moved into place.

    Raises:
        CheckpointError: the folder cannot be written; the file that failed is as it was before.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            write_atomically(folder / name, data)
    except OSError as error:
        raise CheckpointError(
            f"cannot write {folder}: {error}",
            remedy="give a folder that can be written, on a disk with room",
            path=str(folder),
        ) from error
