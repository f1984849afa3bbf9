"""The contents and the size of the cache, and what of it can be removed.

Only the cache: checkpoints that were adapted here (TCHUB_HOME) are never touched, wherever they are.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ...zoo.files import LockError, StorageError
from .entry import CheckpointName
from .errors import CheckpointNameError
from .files import Outcome, is_folder, leftovers
from .store import Store

CHECKPOINTS = "checkpoints"
# Folders beside the checkpoints, and what each holds.
OTHERS = {
    **{"statements": "features of replayed programs", "index": "the refreshed index"},
    "cubins": "compiled programs of cards",
}


@dataclass(frozen=True)
class CacheItem:
    """One checkpoint or folder in the cache.

    Attributes:
        what: `checkpoints`, or one of `OTHERS`.
        name: `tcl-epyc@1.0.0`; of other folders and leftovers the folder's name.
        size: bytes on disk, as the files say.
        outcome: the check of a checkpoint; None for a leftover of a download and for other folders.
        freed: bytes that its removal frees.
        reason: why it can be removed, or, when nothing is freed, why it has to stay.
    """

    what: str
    name: str
    path: Path
    size: int
    outcome: Outcome | None = None
    freed: int = 0
    reason: str = ""

    @property
    def state(self) -> str:
        """A checkpoint's outcome, `partial` for a leftover, else what the folder holds."""
        return str(self.outcome) if self.outcome else OTHERS.get(self.what, "partial")


def contents(store: Store) -> list[CacheItem]:
    """Return the cache's contents: checkpoints by name and version, leftovers of downloads, then the other folders."""
    checkpoints = [item for name in _names(store) for item in _items(store, name)]
    others = (store.root.parent / kind for kind in OTHERS)
    return [*checkpoints, *(_item(path.name, path.name, path) for path in others if is_folder(path))]


def prune(store: Store, *, keep: int = 1, dry_run: bool = False) -> list[CacheItem]:
    """Remove damaged copies, leftovers and older versions; return what was removed, or would be.

    A name of which a process is writing a version right now is left alone, and what cannot be read.

    Args:
        keep: of each checkpoint keep this many whole versions, the newest; 0 removes all.
        dry_run: remove nothing; works on a read-only cache too.

    Raises:
        StorageError: the cache cannot be read, or not be written.
    """
    return [item for name in _names(store) for item in _prune_name(store, name, keep, dry_run)]


def _prune_name(store: Store, name: str, keep: int, dry_run: bool) -> list[CacheItem]:
    try:
        with store.locked(name, seconds=0.0):
            items = list(_unneeded(store, name, keep))
            for item in items:
                if item.outcome is not Outcome.UNREADABLE and not dry_run:
                    store.remove(item.path)
            return items
    except LockError:
        item = _item(CHECKPOINTS, name, store.root / name)
        return [replace(item, reason="left alone: another process is writing it")]
    except StorageError as error:
        if dry_run and error.read_only:  # where nobody can write, nobody has to be kept out
            return list(_unneeded(store, name, keep))
        raise


def _unneeded(store: Store, name: str, keep: int) -> Iterator[CacheItem]:
    items = _items(store, name)
    whole = [item for item in items if item.outcome is Outcome.OK]
    older = whole[: max(0, len(whole) - keep)]
    for item in items:
        if item.outcome is Outcome.UNREADABLE:
            yield replace(item, reason="left alone: it cannot be read")
        elif item.outcome is None:
            yield replace(item, freed=item.size, reason="left behind by a process that was stopped")
        elif item.outcome is not Outcome.OK:
            yield replace(item, freed=item.size, reason=f"damaged: {item.outcome}")
        elif item in older:
            yield replace(item, freed=item.size, reason=f"not among the newest {keep}")


def _names(store: Store) -> list[str]:
    """Return names of fetched checkpoints, and none adapted here, even where both roots are one folder."""
    try:
        names = sorted(path.name for path in store.root.iterdir() if is_folder(path))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageError(
            f"{store.root} cannot be read: {error.strerror}",
            remedy=f"check its permissions, or set {store.variable} to a folder of your own",
            path=str(store.root),
        ) from error
    return [name for name in names if _is_fetched(name)]


def _is_fetched(name: str) -> bool:
    with suppress(CheckpointNameError):
        parsed = CheckpointName.parse(name)
        return parsed.variant is None and parsed.version is None
    return False


def _items(store: Store, name: str) -> list[CacheItem]:
    """Return the versions of a name, oldest first, each checked, and leftovers; or the name that cannot be read."""
    try:
        paths = [path for _, path in store.versions(name) if not path.is_symlink()]
    except OSError:
        return [CacheItem(CHECKPOINTS, name, store.root / name, 0, Outcome.UNREADABLE)]
    left = [_item(CHECKPOINTS, f"{name}/{path.name}", path) for path in leftovers(store.root / name)]
    return [*(_item(CHECKPOINTS, f"{name}@{path.name}", path, _check(store, path)) for path in paths), *left]


def _check(store: Store, path: Path) -> Outcome:
    if entry := store.record(path):
        return store.verify(entry).outcome
    return Outcome.MISSING_FILE if os.access(path, os.R_OK | os.X_OK) else Outcome.UNREADABLE


def _item(kind: str, name: str, path: Path, outcome: Outcome | None = None) -> CacheItem:
    """Return the item of a folder; a file that goes meanwhile, or may not be looked at, does not count."""
    size = 0
    for folder, _, files in os.walk(path):
        for file in files:
            with suppress(OSError):
                size += Path(folder, file).lstat().st_size
    return CacheItem(kind, name, path, size, outcome)
