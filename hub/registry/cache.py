"""The contents and the size of the cache, and what of it can be removed.

Only the cache: checkpoints that were adapted here (TCHUB_HOME) are never touched, wherever they are.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

from ...zoo.files import LockError
from .entry import CheckpointName
from .errors import CheckpointNameError, StoreError
from .files import WEIGHTS_FILE, Outcome, is_folder, leftovers
from .store import Store

CHECKPOINTS = "checkpoints"
# Folders beside the checkpoints, and what each holds.
OTHERS = {"statements": "features of replayed programs", "index": "the refreshed index"}
# Not the index: its folder remembers the newest keys and index, so that nothing older passes for new.
PRUNABLE = (CHECKPOINTS, "statements")


@dataclass(frozen=True)
class CacheItem:
    """One checkpoint or folder in the cache.

    Attributes:
        what: `checkpoints`, or one of `OTHERS`.
        name: `tcl-epyc@1.0.0`; of other folders and leftovers the folder's name.
        size: bytes on disk, as the files say.
        used: when it was last read, as far as the file system keeps it, else when it was written; seconds since the
            epoch, or None without a file.
        outcome: the check of a checkpoint; None for a leftover of a download and for other folders.
        freed: bytes that its removal frees.
        reason: why it can be removed, or, when nothing is freed, why it has to stay.
    """

    what: str
    name: str
    path: Path
    size: int
    used: float | None
    outcome: Outcome | None = None
    freed: int = 0
    reason: str = ""

    @property
    def state(self) -> str:
        """A checkpoint's outcome, `partial` for a leftover, else what the folder holds."""
        return str(self.outcome) if self.outcome else OTHERS.get(self.what, "partial")


def contents(store: Store) -> list[CacheItem]:
    """Return the cache's contents: checkpoints by name and version, leftovers of downloads, then the other folders."""
    checkpoints = [item for name in _names(store) for item in (*_versions(store, name), *_leftovers(store, name))]
    others = (store.root.parent / kind for kind in OTHERS)
    return [*checkpoints, *(_item(path.name, path.name, path) for path in others if is_folder(path))]


def sizes(items: Iterable[CacheItem]) -> dict[str, int]:
    """Return the bytes of each part of the cache's contents."""
    items = list(items)
    return {kind: sum(item.size for item in items if item.what == kind) for kind in (CHECKPOINTS, *OTHERS)}


def prune(
    store: Store, *, keep: int = 1, unused_for: float | None = None, what: str = CHECKPOINTS, dry_run: bool = False
) -> list[CacheItem]:
    """Remove damaged copies, leftovers and older versions; return what was removed, or would be.

    A name of which a process is writing a version right now is left alone, and what cannot be read.

    Args:
        keep: of each checkpoint keep this many whole versions, the newest; 0 removes all.
        unused_for: remove only versions, or files of other folders, that were not read for this many seconds.
        what: one of `PRUNABLE`: `checkpoints`, or another folder, which is emptied.
        dry_run: remove nothing; works on a read-only cache too.

    Raises:
        StoreError: the cache cannot be read, or not be written.
    """
    before = time.time() - unused_for if unused_for is not None else inf
    if what == CHECKPOINTS:
        return [item for name in _names(store) for item in _prune_name(store, name, keep, before, dry_run)]
    folder = store.root.parent / what
    # Hidden files are being written.
    files = {p: i.st_size for p, i in _files(folder).items() if not p.name.startswith(".") and _used(i) < before}
    with store.guarded(folder):
        for path in () if dry_run else files:
            path.unlink(missing_ok=True)
    return [replace(_item(what, what, folder), freed=sum(files.values()), reason=OTHERS[what])] if files else []


def _prune_name(store: Store, name: str, keep: int, before: float, dry_run: bool) -> list[CacheItem]:
    def removable() -> list[CacheItem]:
        return [*_leftovers(store, name), *_unneeded(_versions(store, name), keep, before)]

    try:
        with store.locked(name, seconds=0.0):
            items = removable()
            for item in () if dry_run else items:
                if item.outcome is not Outcome.UNREADABLE:
                    store.remove(item.path)
            return items
    except LockError:
        item = _item(CHECKPOINTS, name, store.root / name)
        return [replace(item, reason="left alone: another process is writing it")]
    except StoreError as error:
        if dry_run and error.read_only:  # where nobody can write, nobody has to be kept out
            return removable()
        raise


def _leftovers(store: Store, name: str) -> list[CacheItem]:
    items = [_item(CHECKPOINTS, f"{name}/{path.name}", path) for path in leftovers(store.root / name)]
    return [replace(item, freed=item.size, reason="left behind by a process that was stopped") for item in items]


def _unneeded(versions: list[CacheItem], keep: int, before: float) -> Iterator[CacheItem]:
    whole = [item for item in versions if item.outcome is Outcome.OK]
    older = whole[: max(0, len(whole) - keep)]
    for item in versions:
        if item.outcome is Outcome.UNREADABLE:
            yield replace(item, reason="left alone: it cannot be read")
        elif item.outcome is not Outcome.OK:
            yield replace(item, freed=item.size, reason=f"damaged: {item.outcome}")
        elif item in older and (item.used or 0.0) < before:
            yield replace(item, freed=item.size, reason=f"not among the newest {keep}")


def _names(store: Store) -> list[str]:
    """Return names of fetched checkpoints, and none adapted here, even where both roots are one folder."""
    try:
        paths = sorted(store.root.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError(
            f"{store.root} cannot be read: {error.strerror}",
            remedy=f"check its permissions, or set {store.variable} to a folder of your own",
            path=str(store.root),
        ) from error
    return [path.name for path in paths if _is_fetched(path.name) and is_folder(path)]


def _is_fetched(name: str) -> bool:
    with suppress(CheckpointNameError):
        parsed = CheckpointName.parse(name)
        return parsed.variant is None and parsed.version is None
    return False


def _versions(store: Store, name: str) -> list[CacheItem]:
    """Return the versions of a name, oldest first, each checked; the name itself where it cannot be read."""
    try:
        versions = store.versions(name)
    except OSError:
        return [CacheItem(CHECKPOINTS, name, store.root / name, 0, None, Outcome.UNREADABLE)]
    return [_checked(store, name, path) for _, path in versions if not path.is_symlink()]


def _checked(store: Store, name: str, path: Path) -> CacheItem:
    before = _files(path)
    # Listing checkpoints reads their records, so that the weights alone show a use.
    weights = [info for file, info in before.items() if file.name == WEIGHTS_FILE]
    item = _item(CHECKPOINTS, f"{name}@{path.name}", path, weights)
    entry = store.record(path)
    if entry:
        outcome = store.verify(entry).outcome
    else:
        outcome = Outcome.MISSING_FILE if os.access(path, os.R_OK | os.X_OK) else Outcome.UNREADABLE
    for file, info in before.items():
        with suppress(OSError):  # looking at the cache is no use of it
            os.utime(file, ns=(info.st_atime_ns, info.st_mtime_ns))
    return replace(item, outcome=outcome)


def _item(kind: str, name: str, path: Path, read: Iterable[os.stat_result] = ()) -> CacheItem:
    """Return the item of a folder, last used when one of the files in `read` was, or else any of its files."""
    infos = list(_files(path).values())
    used = max(map(_used, list(read) or infos), default=None)
    return CacheItem(kind, name, path, sum(info.st_size for info in infos), used)


def _used(info: os.stat_result) -> float:
    return max(info.st_atime, info.st_mtime)


def _files(folder: Path) -> dict[Path, os.stat_result]:
    """Return every plain file under a folder; one that goes meanwhile, or may not be looked at, is left out."""
    files = {}
    for path in sorted(Path(parent, name) for parent, _, names in os.walk(folder) for name in names):
        with suppress(OSError):
            info = path.lstat()
            if stat.S_ISREG(info.st_mode):
                files[path] = info
    return files
