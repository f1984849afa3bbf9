"""The output folder of a tuning run: one process at a time, and one network, target and model for good."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...zoo.files import storing, write_atomically
from .errors import RunStateError
from .folder_lock import alone_in

FORMAT = 1
PHASES_FILE = "phases.json"
IDENTITY = ("network", "target", "model", "tasks", "device")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes out.

    Raises:
        RunStateError: another process tunes into it, or it cannot be written.
    """
    busy = f"another process tunes into {folder}"
    with alone_in(
        folder,
        lambda: RunStateError(busy, remedy="wait for it, or choose another --out", path=str(folder)),
        lambda error: RunStateError(
            f"{folder} cannot be written: {error.strerror or error}",
            remedy="choose another --out",
            path=str(folder),
        ),
    ):
        yield


def claim(folder: Path, facts: dict[str, Any], *, resume: bool = True) -> bool:
    """Mark a folder as this run's; returns whether it holds an earlier part of the same run.

    Args:
        facts: JSON-serialisable; those named in `IDENTITY` must not change between parts.
        resume: whether an earlier part may be taken up.

    Raises:
        RunStateError: the folder is another run's, damaged, of a newer release, or not to be resumed.
        StorageError: it cannot be written.
    """
    path = folder / "session.json"
    if not path.is_file():
        with storing(path):
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps({"format": FORMAT} | facts, indent=2).encode())
        return False
    before = _read(path)
    differing = [key for key in IDENTITY if before.get(key) != json.loads(json.dumps(facts.get(key)))]
    if differing:
        raise RunStateError(
            f"{folder} holds a run with another {differing[0]}: {_short(before.get(differing[0]))}",
            remedy="choose another --out, or delete the folder",
            path=str(folder),
            differing=differing,
        )
    if not resume:
        raise RunStateError(
            f"{folder} holds an earlier run", remedy="choose another --out, or resume it", path=str(folder)
        )
    return True


def read_phases(folder: Path, names: Iterable[str]) -> dict[str, float]:
    """Seconds that earlier parts of the run spent in each phase; 0 for one that was not kept.

    Raises:
        RunStateError: the file is damaged.
    """
    path = folder / PHASES_FILE
    if not path.is_file():
        return dict.fromkeys(names, 0.0)
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        return {name: float(kept.get(name, 0.0)) for name in names}
    except (ValueError, TypeError, AttributeError) as error:
        raise RunStateError(
            f"{path} is damaged: {error}", remedy="delete it: only times of the report are lost", path=str(path)
        ) from error


def write_phases(folder: Path, phases: Mapping[str, float]) -> None:
    """Keep the seconds of each phase for the part of the run that goes on."""
    with storing(folder / PHASES_FILE):
        write_atomically(folder / PHASES_FILE, json.dumps(dict(phases)).encode())


def _read(path: Path) -> dict[str, Any]:
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        version = int(facts["format"])
    except (ValueError, KeyError, TypeError) as error:
        raise RunStateError(
            f"{path} is damaged: {error}", remedy="choose another --out", path=str(path)
        ) from error
    if version > FORMAT:
        raise RunStateError(
            f"{path} was written by a newer release (format {version})", remedy="upgrade tchub", path=str(path)
        )
    return facts


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) < 80 else text[:77] + "..."
