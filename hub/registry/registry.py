"""`Registry`: the index, the stores and the sources together; what `hub.pull` and `hub.load` stand on."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from ...zoo.devices import Device
from ...zoo.errors import TchubWarning
from ...zoo.files import StorageError
from .entry import Entry, describe
from .errors import IntegrityError, SourceError
from .files import CONFIG_FILE, Outcome, Verification, is_folder, verify_folder
from .index import Index
from .lock_file import LockFile
from .network import network_ruled_out
from .resolve import Resolution, require_loadable, resolve
from .sources import FolderSource, bundled_root, fetch, own_index_of, parse_source, sources_for
from .store import Store, cache_root, home_root
from .trust import current_index


@dataclass(frozen=True)
class PulledCheckpoint:
    """A checkpoint whose files are here and verified.

    Attributes:
        source: where it came from: a source's uri, or `store` when it was here already.
        resolution: the choice, with its reasons when no name was given.
    """

    path: Path
    source: str
    resolution: Resolution

    @property
    def entry(self) -> Entry:
        return self.resolution.entry


@dataclass(frozen=True)
class Registry:
    """All checkpoints that are known on this machine and in the index.

    Attributes:
        index: the published checkpoints; cache: fetched ones; home: the ones adapted here.
        wheel: the folder of those that ship with tchub.
    """

    index: Index
    cache: Store
    home: Store
    wheel: Path = field(default_factory=bundled_root)

    @classmethod
    def default(cls) -> Self:
        """Return the registry that the environment describes."""
        return cls(current_index(), Store(cache_root(), "TCHUB_CACHE"), Store(home_root(), "TCHUB_HOME"))

    def entries(self) -> list[Entry]:
        """Return published, fetched (an older index may have listed them) and local ones, each version once."""
        return list(self.index.merged(self.cache.entries()).merged(self.home.entries()).entries)

    def resolve(self, name: str | None = None, device: Device | None = None) -> Resolution:
        """Resolve as `registry.resolve.resolve`; also issue its warnings, as `TchubWarning`."""
        resolution = resolve(self.entries(), name, device, self.home.stand_ins())
        for text in resolution.warnings:
            warnings.warn(text, TchubWarning, stacklevel=3)
        return resolution

    def store_of(self, entry: Entry) -> Store:
        return self.home if entry.is_local else self.cache

    def _in_wheel(self, entry: Entry) -> Path:
        return self.wheel / entry.name / entry.version

    def folder(self, entry: Entry) -> Path | None:
        """Return the copy that a load would use, whole or not: in a store, else in the wheel; None for neither."""
        copies = (self.store_of(entry).path(entry), self._in_wheel(entry))
        return next(filter(is_folder, copies), None)

    def verify(self, entry: Entry) -> tuple[Verification, str]:
        """Check the copy that a load would use, and name it: `store` or `bundled`."""
        if self.folder(entry) == (wheel := self._in_wheel(entry)):
            return verify_folder(wheel, entry.files), "bundled"
        return self.store_of(entry).verify(entry), "store"

    def locate(self, resolution: Resolution, *, offline: bool = False) -> PulledCheckpoint:
        """Return the verified files of a checkpoint, fetched only when they are neither in a store nor in the wheel.

        Raises:
            IntegrityError: the files are not what the index says.
            SourceError, StorageError: it is not here, and cannot be fetched.
        """
        entry = resolution.entry
        if self.folder(entry) == (wheel := self._in_wheel(entry)):
            verify_folder(wheel, entry.files).require("reinstall tchub: its own files are damaged")
            return PulledCheckpoint(wheel, "bundled", resolution)
        try:
            return PulledCheckpoint(self.store_of(entry).require(entry), "store", resolution)
        except IntegrityError as error:
            if entry.is_local or error.fields["outcome"] != Outcome.NOT_INSTALLED:
                raise
        return self.fetch(resolution, offline=offline)

    def pull(
        self,
        name: str | None = None,
        *,
        source: str | None = None,
        offline: bool = False,
        device: Device | None = None,
    ) -> PulledCheckpoint:
        """Resolve, fetch what is not here, verify; arguments as of `hub.pull`.

        Offline, also if the environment says so, the wheel, folders and the Hub's cache still serve.
        """
        offline = offline or network_ruled_out()
        known = self
        if source is not None:
            # A source that was named may bring an index of its own, for checkpoints that ours does not list.
            origin = parse_source(source)
            if isinstance(origin, FolderSource) or not offline:
                known = replace(self, index=self.index.merged(own_index_of(origin, offline=offline).entries))
        return self.fetch(known.resolve(name, device), source=source, offline=offline)

    def pinned(self, name: str | None, lock: Path) -> Resolution:
        """Return what a lock file pins (None: its only pin), whatever newer versions there are.

        Raises:
            IndexFileError, UnknownCheckpointError: it does not pin this, or is at odds with the index or this tchub.
        """
        entry = LockFile.read(lock).entry(name, self.index)
        require_loadable(entry)
        return Resolution(entry, ())

    def fetch(self, resolution: Resolution, *, source: str | None = None, offline: bool = False) -> PulledCheckpoint:
        """Fetch what was chosen unless it is stored here, and verify it; arguments and errors as for `pull`.

        A whole copy in the cache serves, with a warning, where the index has corrected its card since and the new one
        cannot be had: without a network, from no source, or because the cache is read-only.
        """
        entry = resolution.entry
        if entry.is_local:
            return self.locate(resolution)
        used = ["store"]

        def fill(folder: Path) -> None:
            sources = sources_for(entry, source, self.wheel)
            used[0] = fetch(entry, folder, sources, offline=offline or network_ruled_out())

        try:
            return PulledCheckpoint(self.cache.add(entry, fill), used[0], resolution)
        except (StorageError, SourceError, IntegrityError) as error:
            unavailable = not isinstance(error, StorageError) or error.read_only
            if not (unavailable and self.cache.verify(entry).ok):
                raise
            text = f"{error.message}; {entry.id} is served as it is stored, without the card that was corrected since"
            warnings.warn(text, TchubWarning, stacklevel=3)
        return PulledCheckpoint(self.cache.path(entry), "store", resolution)

    def register_local(self, name: str, save: Callable[[Path, str], None], base: Entry, **facts: Any) -> Entry:
        """Store a checkpoint that was made on this machine, as the next version of `name`; return its entry.

        Args:
            save: writes the files of this version into the folder that it is given.
            base: the checkpoint it was adapted from, whose licences it inherits.
            facts: entry fields that the files do not give, e.g. `data` or another `data_licence`.
        """
        facts = {"weights_licence": base.weights_licence, "data_licence": base.data_licence} | facts

        def fill(folder: Path, version: str) -> Entry:
            save(folder, version)
            return describe(folder, name, version, **facts)

        return self.home.add_new(name, fill)


def find_checkpoint(name_or_folder: str | Path, *, offline: bool = False) -> Path:
    """Return the folder of a checkpoint that a user named: a folder, or a name of the registry.

    A folder where there is one with a config.json, or the name is written like a path; else the verified files of the
    registry's checkpoint, fetched where they are not here.
    """
    path = Path(name_or_folder)
    if isinstance(name_or_folder, Path) or (path / CONFIG_FILE).is_file() or len(path.parts) > 1:
        return path
    registry = Registry.default()
    return registry.locate(registry.resolve(name_or_folder), offline=offline).path
