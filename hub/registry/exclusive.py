"""One process at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import StoreError

_PATIENCE = 120.0


@contextmanager
def exclusive(path: Path, seconds: float = _PATIENCE) -> Iterator[None]:
    """Hold a lock file. It stays where it is, but the lock ends with the process that holds it, killed or not.

    Args:
        path: the lock file, created when missing; its folder exists.
        seconds: how long to wait for another process.

    Raises:
        StoreError: another process held it for that long. Field: `path`.
        OSError: the file cannot be made.
    """
    import filelock  # brings asyncio, and most commands lock nothing

    lock = filelock.FileLock(path, timeout=seconds)
    try:
        lock.acquire()
    except filelock.Timeout as error:
        raise StoreError(
            f"another process has held {path} for {seconds:g} s",
            remedy="wait for it, or end it; the lock frees itself when its process ends",
            path=str(path),
        ) from error
    try:
        yield
    finally:
        lock.release()
