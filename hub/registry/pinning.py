"""Pulling with a lock file: pins written, or followed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from ..api import pull
from . import Entry, PulledCheckpoint, parse_source
from .lock import LOCK_FILE, LockFile, pin
from .offline import network_ruled_out
from .sources import fetch


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
        TchubError: as `hub.pull` does, also where a source that is named does not give what is stored here already;
            nothing is pinned then.
    """
    path = Path(lock)
    wanted = names or (sorted(LockFile.read(path).pins) if path.exists() else ()) or [None]
    pulled = [pull(name, source=source, offline=offline) for name in wanted]
    entries = [one.entry for one in pulled]
    if source not in (None, "bundled"):
        for one in pulled:
            if one.source == "store" and not one.entry.is_local:
                _require_in(source, one.entry, offline)
        # It goes first: nothing else may know where these checkpoints are.
        entries = [replace(one, sources=tuple(dict.fromkeys((source, *one.sources)))) for one in entries]
    pin(path, entries)
    return pulled


def _require_in(source: str, entry: Entry, offline: bool) -> None:
    """Let a source give the files of what was here already: a pin names no place where nobody looked."""
    with TemporaryDirectory() as scratch:
        fetch(entry, Path(scratch), [parse_source(source)], offline=offline or network_ruled_out())
