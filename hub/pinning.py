"""Pulling with a lock file: pins written, or followed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from .api import pull
from .registry import Entry, PulledCheckpoint
from .registry.lock import LOCK_FILE, LockFile, pin


def pull_pinned(
    names: Sequence[str] = (), *, lock: str | Path = LOCK_FILE, source: str | None = None, offline: bool = False
) -> list[PulledCheckpoint]:
    """Fetch exactly what a lock file pins.

    Args:
        names: checkpoints that are pinned; empty for all of them.

    Raises:
        LockFileError: the file cannot be used, lacks a name, or is at odds with the index.
        TchubError: as `hub.pull` does.
    """
    wanted = names or sorted(LockFile.read(Path(lock)).pins)
    return [pull(name, source=source, offline=offline, lock=lock) for name in wanted]


def pull_and_pin(
    names: Sequence[str] = (), *, lock: str | Path = LOCK_FILE, source: str | None = None, offline: bool = False
) -> list[PulledCheckpoint]:
    """Pull as `hub.pull` does, and pin what came; names that are not pulled keep their pins.

    Args:
        names: checkpoints or families; empty for all that are pinned, at their newest versions, or where nothing
            is pinned yet for the one that fits this machine best.

    Raises:
        LockFileError: the file cannot be used, or is at odds with the index; it stays as it was.
        TchubError: as `hub.pull` does; nothing is pinned then.
    """
    path = Path(lock)
    wanted = names or (sorted(LockFile.read(path).pins) if path.exists() else ()) or [None]
    pulled = [pull(name, source=source, offline=offline) for name in wanted]
    pin(path, [_from(one.entry, source) for one in pulled])
    return pulled


def _from(entry: Entry, source: str | None) -> Entry:
    """The source that was named goes first: nothing else may know where this checkpoint is."""
    further = () if source in (None, "bundled") else (source,)
    return replace(entry, sources=tuple(dict.fromkeys((*further, *entry.sources))))
