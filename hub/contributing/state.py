"""What of a contribution is finished: `contribute.json` in its folder, whole at every moment.

Raising `FORMAT`: raise it when a field is added, renamed or changes its meaning, and teach `State.open` the older form.

1. Steps told their corpora by the paths that were typed and the digests of the programs alone.
2. They tell them by name, with digests of facts and tasks too, in their order.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...zoo.models.files import write_folder
from ...zoo.plain_json import json_file
from ..records.folder_lock import alone_in
from ..registry.files import sha256_of
from .corpora import content_of_programs
from .errors import ContributionStateError

FORMAT = 2
STATE_FILE = "contribute.json"


@dataclass(frozen=True)
class Record:
    """A finished step.

    Attributes:
        inputs: all that its result depends on; files are told by their sha256.
        facts: what it found, for the steps after it.
        files: that it wrote, relative to the folder -> sha256.
    """

    inputs: dict[str, Any]
    facts: dict[str, Any] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)


@dataclass
class State:
    """The finished steps of a folder, by name."""

    folder: Path
    records: dict[str, Record] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path) -> State:
        """Read what is finished; nothing, in a folder without a state.

        Raises:
            ContributionStateError: the file is damaged, or of a newer release.
        """
        path = folder / STATE_FILE
        if not path.is_file():
            return cls(folder)
        try:
            raw = json.loads(path.read_bytes())
            number = raw["format"]
            if type(number) is not int or number > FORMAT:
                raise _bad(path, f"it has format {number!r}; this tchub reads up to {FORMAT}", "upgrade tchub")
            if number == 1:
                _upgrade(raw["steps"])
            return cls(folder, {name: Record(**record) for name, record in raw["steps"].items()})
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            remedy = "remove it: the steps are done again, and what was measured stays"
            raise _bad(path, f"it is damaged ({error!r})", remedy) from error

    def keep(self, name: str, record: Record) -> None:
        """Write down that a step is finished."""
        self.records[name] = record
        self._write()

    def forget(self, names: tuple[str, ...]) -> None:
        """Take these steps for unfinished."""
        self.records = {name: record for name, record in self.records.items() if name not in names}
        self._write()

    def changed(self, name: str, inputs: dict[str, Any]) -> tuple[str, ...] | None:
        """What of a finished step is not as it was: names of inputs, and of files; None where it was not finished."""
        record = self.records.get(name)
        if record is None:
            return None
        now = json.loads(json_file(inputs))
        differing = [key for key in now.keys() | record.inputs.keys() if now.get(key) != record.inputs.get(key)]
        gone = [file for file, digest in record.files.items() if not _is(self.folder / file, digest)]
        return (*sorted(differing), *gone)

    def _write(self) -> None:
        steps = {name: asdict(record) for name, record in self.records.items()}
        write_folder(self.folder, {STATE_FILE: json_file({"format": FORMAT, "steps": steps})})


def _upgrade(steps: dict[str, Any]) -> None:
    """Records of format 1 as those of format 2, as far as their paths lead to the corpora from here."""
    folders = [Path(path).resolve() for path in steps["collect"]["facts"]["corpora"]] if "collect" in steps else []
    for record in steps.values():
        for key in ("corpora", "programs"):  # of the collection, and of the steps after it
            if isinstance(record["inputs"].get(key), dict):
                programs = {Path(path).resolve(): digest for path, digest in record["inputs"].pop(key).items()}
                known = [folder for folder in folders if folder in programs]
                record["inputs"]["corpora"] = [content_of_programs(folder, programs[folder]) for folder in known]


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes out of a contribution's folder.

    Raises:
        ContributionStateError: another one is in it, or it cannot be written.
    """
    with alone_in(
        folder,
        lambda: _bad(folder, "another process works in it", "wait for it, or choose another --output"),
        lambda error: _bad(folder, f"it cannot be written: {error.strerror}", "choose another --output"),
    ):
        yield


def digests(folder: Path, paths: list[Path]) -> dict[str, str]:
    """Files by their path relative to the folder -> sha256."""
    return {str(path.relative_to(folder)): sha256_of(path) for path in paths}


def _is(path: Path, digest: str) -> bool:
    return path.is_file() and sha256_of(path) == digest


def _bad(path: Path, why: str, remedy: str) -> ContributionStateError:
    return ContributionStateError(f"{path} cannot be used: {why}", remedy=remedy, path=str(path))
