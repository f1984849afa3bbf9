"""The Python face of the hub: find, fetch and load checkpoints.

All raise a subclass of TchubError for each way in which they can fail (see `registry.errors`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from ..zoo.devices import Device
from .registry import Entry, PulledCheckpoint, Registry, Resolution, Verification, describe, parse_source
from .registry.entry import RECORD
from .registry.files import METRICS_FILE, SCHEDULES_FILE, read_json
from .registry.listing import CatalogueItem
from .registry.lock_file import LOCK_FILE, LockFile, pin
from .registry.network import network_ruled_out
from .registry.sources import fetch

if TYPE_CHECKING:
    from ..zoo.models import Checkpoint
    from .device.detect import LocalDevice


def list_checkpoints(*, family: str | None = None, arch: str | None = None, local: bool = False) -> list[Entry]:
    """Return every checkpoint that is known here: published, fetched and adapted ones, by name and version.

    Args:
        family: only those of one device family, e.g. `epyc`.
        arch: only those of one architecture, e.g. `tcl`.
        local: only those adapted on this machine.
    """
    entries = [
        entry
        for entry in Registry.default().entries()
        if family in (None, entry.family) and arch in (None, entry.arch) and (entry.is_local or not local)
    ]
    return sorted(entries, key=lambda entry: (entry.name, entry.semver))


def pull(
    name: str | None = None,
    *,
    source: str | None = None,
    offline: bool = False,
    device: Device | LocalDevice | None = None,
    lock: str | Path | None = None,
) -> PulledCheckpoint:
    """Fetch a checkpoint into this machine's store and verify its sha256.

    Args:
        name: `arch-family` or `arch-family@X.Y.Z`; None picks the checkpoint that fits the device best.
        source: force a source: `bundled`, `file:///folder`, `https://host/folder` or `hf://org/name`.
        offline: use no network.
        device: the device to fit; None for this machine (detected only when there is no name).
        lock: a lock file, e.g. `tchub.lock`: take exactly the version that it pins, whatever is newer.

    Returns:
        The folder, the index entry, where the files came from, and the reasons of the choice.
    """
    registry = Registry.default()
    if lock is not None:
        return registry.fetch(registry.pinned(name, Path(lock)), source=source, offline=offline)
    return registry.pull(name, source=source, offline=offline, device=_device(device, detect=name is None))


def pull_pinned(
    names: Sequence[str] = (), *, lock: str | Path = LOCK_FILE, source: str | None = None, offline: bool = False
) -> list[PulledCheckpoint]:
    """Fetch exactly what a lock file pins.

    Args:
        names: checkpoints that are pinned; empty for all of them.

    Raises:
        IndexFileError: the file cannot be used, lacks a name, or is at odds with the index.
        TchubError: as `pull` does.
    """
    wanted = names or sorted(LockFile.read(Path(lock)).pins)
    return [pull(name, source=source, offline=offline, lock=lock) for name in wanted]


def pull_and_pin(
    names: Sequence[str] = (), *, lock: str | Path = LOCK_FILE, source: str | None = None, offline: bool = False
) -> list[PulledCheckpoint]:
    """Pull as `pull` does, and pin what came; names that are not pulled keep their pins.

    Args:
        names: checkpoints or families; empty for all that are pinned, at their newest versions, or where nothing
            is pinned yet for the one that fits this machine best.

    Raises:
        IndexFileError: the file cannot be used, or is at odds with the index; it stays as it was.
        TchubError: as `pull` does, also where a source that is named does not give what is stored here already;
            nothing is pinned then.
    """
    path = Path(lock)
    wanted = names or (sorted(LockFile.read(path).pins) if path.exists() else ()) or [None]
    pulled = [pull(name, source=source, offline=offline) for name in wanted]
    entries = [one.entry for one in pulled]
    if source not in (None, "bundled"):
        for one in pulled:
            if one.source == "store" and not one.entry.is_local:
                # A pin names no source that was not asked: it has to give the files of what was here already, too.
                with TemporaryDirectory() as folder:
                    fetch(one.entry, Path(folder), [parse_source(source)], offline=offline or network_ruled_out())
        # It goes first: nothing else may know where these checkpoints are.
        entries = [replace(entry, sources=tuple(dict.fromkeys((source, *entry.sources)))) for entry in entries]
    pin(path, entries)
    return pulled


def resolve(name: str | None = None, *, device: Device | LocalDevice | None = None) -> Resolution:
    """Choose a checkpoint as `pull` would, and fetch nothing.

    Args:
        name: a checkpoint, or a device family for the best one of it; None for the one that fits the device best.
        device: the device to fit; None for this machine (detected only when there is no name).

    Returns:
        The index entry, and the reason for each one that was passed over.
    """
    return _resolve(Registry.default(), name, device)


def load(name: str | None = None, *, offline: bool = False, lock: str | Path | None = None) -> Checkpoint:
    """Return a checkpoint, ready to score: from the store or the wheel, else fetched first; verified at every load.

    Args:
        name: `arch-family[+variant][@X.Y.Z]`; None for the one that fits this machine best.
        offline: never fetch.
        lock: a lock file, e.g. `tchub.lock`: load exactly the version that it pins.
    """
    from ..zoo.models import Checkpoint

    return Checkpoint.load(locate(name, offline=offline, lock=lock).path)


def locate(name: str | None = None, *, offline: bool = False, lock: str | Path | None = None) -> PulledCheckpoint:
    """Return the verified files of a checkpoint, fetched only when they are neither in a store nor in the wheel."""
    registry = Registry.default()
    resolution = registry.pinned(name, Path(lock)) if lock is not None else _resolve(registry, name)
    return registry.locate(resolution, offline=offline)


@dataclass(frozen=True)
class CheckpointChoice:
    """A loaded checkpoint, and how it was chosen.

    Attributes:
        checkpoint: loaded and verified.
        entry: its index entry.
        reasons: why it was chosen, one line a checkpoint, when no name was given.
        asked: the name or folder that was asked for; None when the choice was left to the registry.
        schedules: the file of schedules that it brings, see `search.schedules`; None where it brings none.
    """

    checkpoint: Checkpoint
    entry: Entry
    reasons: tuple[str, ...] = ()
    asked: str | None = None
    schedules: Path | None = None


def choose_checkpoint(name: str | None = None) -> CheckpointChoice:
    """Load a checkpoint by its name or folder, or the one that fits this machine best; its schedules are read, too."""
    from ..zoo.models import Checkpoint

    if name is not None and (Path(name) / "config.json").is_file():
        checkpoint = Checkpoint.load(name)
        # Of a folder that lies in a store, or is a copy of one, the record tells licences that the files may not.
        record = read_json(Path(name) / RECORD)
        licences = {key: str(record[key]) for key in ("weights_licence", "data_licence") if record.get(key)}
        config = checkpoint.config
        entry = describe(Path(name), config.name, config.version, no_licence="not given", **licences)
        return CheckpointChoice(checkpoint, entry, asked=name, schedules=_schedules(Path(name), entry))
    pulled = locate(name)
    reasons = tuple(f"{verdict.id}: {verdict.reason}" for verdict in pulled.resolution.verdicts)
    checkpoint = Checkpoint.load(pulled.path)
    return CheckpointChoice(checkpoint, pulled.entry, reasons, name, _schedules(pulled.path, pulled.entry))


def _schedules(folder: Path, entry: Entry) -> Path | None:
    """Return the file of schedules that a checkpoint lists; raises CorruptCheckpointError where it cannot be used."""
    if SCHEDULES_FILE not in entry.files:
        return None
    from .search.schedules import read_schedules

    read_schedules(folder / SCHEDULES_FILE)  # before anything is measured
    return folder / SCHEDULES_FILE


def verify(names: Sequence[str] = (), *, lock: str | Path | None = None) -> list[tuple[Entry, Verification, str]]:
    """Check checkpoints' files on this machine, without fetching or raising for what is wrong with them.

    Args:
        names: checkpoints; empty for all that are on this machine, or, here or not, all that the lock file pins.
        lock: a lock file: check them against what it pins.

    Returns:
        The entry, the outcome, and which copy was checked: `store` or `bundled`.
    """
    registry = Registry.default()
    if lock is not None:
        wanted = names or sorted(LockFile.read(Path(lock)).pins)
        entries = [registry.pinned(name, Path(lock)).entry for name in wanted]
    elif names:
        entries = [_resolve(registry, name).entry for name in names]
    else:
        entries = [entry for entry in list_checkpoints() if registry.folder(entry)]
    return [(entry, *registry.verify(entry)) for entry in entries]


def describe_checkpoint(name: str) -> CatalogueItem:
    """Return entry, scores and card of a checkpoint, as far as they are on this machine; fetches nothing."""
    registry = Registry.default()
    entry = _resolve(registry, name).entry
    path = registry.folder(entry)
    return CatalogueItem(entry, metrics=read_json(path / METRICS_FILE) if path else {}, path=path)


def _resolve(registry: Registry, name: str | None, device: Device | LocalDevice | None = None) -> Resolution:
    return registry.resolve(name, _device(device, detect=name is None))


def _device(device: Device | LocalDevice | None, *, detect: bool) -> Device | None:
    if device is None and detect:
        from .device.detect import detect_local

        device = detect_local()
    return device if device is None or isinstance(device, Device) else device.device
