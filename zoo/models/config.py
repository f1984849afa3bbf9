"""`CheckpointConfig`: the contents of a checkpoint's `config.json`."""

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

import msgspec

from ..trust import ClassTrust
from ..untrusted import parse_json, read_plain
from .errors import CheckpointError, CorruptCheckpointError

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
FORMAT = 1
MAX_CONFIG_BYTES = 1 << 20  # the largest in the zoo has 12 KB


@dataclass(frozen=True)
class CheckpointConfig:
    """One checkpoint, without its weights.

    Attributes:
        name: e.g. "tcl-epyc", or "tcl-epyc+local" after adapting.
        version: e.g. "1.0.0".
        arch: a registered architecture; model: its settings, all of them.
        feature_schema: the features it reads; feature_version: of that schema's meaning.
        family: device family, or a device's name where it is more exact.
        lineage: its origin (base checkpoint, corpus, licences).
        training: recipe, seed and metrics of the training.
        tvm: version of the TVM whose programs it learnt from.
        trust: `framework/class` -> how far scores hold, with `*` for any framework and any class; the scores of a
            class that is not trusted count for nothing. Where it is empty all are trusted.
        device: the device itself where no data file of tchub lists it (as `Device.to_dict`), else None.
        format: of this file.
    """

    name: str
    version: str
    arch: str
    model: dict[str, Any]
    feature_schema: str
    family: str
    feature_version: int = 1
    lineage: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    tvm: str = ""
    trust: dict[str, ClassTrust] = field(default_factory=dict)
    device: dict[str, Any] | None = None
    format: int = FORMAT

    def trusts(self, framework: str, operator: str) -> bool:
        """Return whether scores hold for an operator class of a framework's programs.

        Where no such task is known, the class of any framework must hold, and any class of the framework, both by more.
        """
        if not self.trust:
            return True
        if exact := self.trust.get(f"{framework}/{operator}"):
            return exact.trusted
        return all(self.trust.get(key, ClassTrust()).extends for key in (f"*/{operator}", f"{framework}/*"))

    def to_json(self) -> bytes:
        """Return the file's contents."""
        return (json.dumps(asdict(self), indent=2, sort_keys=True) + "\n").encode()

    @classmethod
    def from_dict(cls, data: object, path: Path) -> Self:
        """Check the format first, then the name and type of every field.

        Raises:
            CheckpointError: the config is of a newer release.
            CorruptCheckpointError: not an object, or a field is missing, unknown or of the wrong type.
        """
        if not isinstance(data, dict):
            raise corrupt(path, "it is not a JSON object")
        number = data.get("format")
        if type(number) is not int or number < 1:
            raise corrupt(path, f"format is {number!r}, not a number")
        if number > FORMAT:
            raise CheckpointError(
                f"{path} has format {number}; this release reads up to {FORMAT}",
                remedy="upgrade tchub: pip install -U tchub",
                path=str(path),
            )
        if unknown := sorted(set(data) - {f.name for f in fields(cls)}):
            raise corrupt(path, f"unknown field {unknown[0]!r}")
        try:
            return msgspec.convert(data, cls)
        except msgspec.ValidationError as error:
            raise corrupt(path, str(error)) from error

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read `config.json` of a folder; errors are those of `from_dict`, and CheckpointError where there is none."""
        path = folder / CONFIG_FILE
        try:
            data = parse_json(read_plain(path, MAX_CONFIG_BYTES))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise CheckpointError(
                f"{folder} is not a checkpoint: it has no {CONFIG_FILE}",
                remedy="give a folder with config.json and its weights, or a name of `tchub list`",
                path=str(folder),
            ) from error
        except (OSError, ValueError) as error:
            raise corrupt(path, f"it cannot be used: {error}") from error
        return cls.from_dict(data, path)


def corrupt(path: Path, problem: str) -> CorruptCheckpointError:
    """Return the error of a file that cannot be used."""
    remedy = "fetch or make the checkpoint again, or upgrade tchub"
    return CorruptCheckpointError(f"{path}: {problem}", remedy=remedy, path=str(path))
