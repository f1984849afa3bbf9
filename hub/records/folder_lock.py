"""One process a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import filelock

from ...zoo.errors import TchubError


@contextmanager
def alone_in(
    folder: Path, busy: Callable[[], TchubError], unwritable: Callable[[OSError], TchubError]
) -> Iterator[None]:
    """Keep other processes out of a folder, which is made when it is not there.

    Args:
        busy: the error when another process is in it.
        unwritable: the error when it cannot be written.

    Raises:
        TchubError: one of the two; nothing is waited for.
    """
    lock = filelock.FileLock(folder / ".lock", timeout=0)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except filelock.Timeout as error:
        raise busy() from error
    except OSError as error:
        raise unwritable(error) from error
    try:
        yield
    finally:
        lock.release()
