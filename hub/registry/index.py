"""The index: every published checkpoint with its files' sizes and sha256, its licences and its scores."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

from .errors import CheckpointNameError, IndexFileError
from .names import KINDS, CheckpointName, Version

INDEX_FORMAT = 1
CONFIG_FILE = "config.json"
# One of these holds what a model learnt: tensors, XGBoost's trees, LightGBM's trees. Equal to `zoo.models`' own names
# (a test holds them together); importing those would import torch.
WEIGHT_FILES = ("model.safetensors", "model.json", "model.txt")
ORIGINS = ("measured", "transferred")
MAX_FILE_BYTES = 1 << 30  # the largest architecture of the zoo is a few MB; an index that claims more is wrong
# A flat folder of weights, JSON and text: no path can leave it, and no pickle can be named.
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,60}\.(?:json|safetensors|md|txt)")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file of a checkpoint: its size in bytes and its sha256 as lower-case hex."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Entry:
    """One version of one checkpoint. It never changes once published.

    Attributes:
        files: file name -> size and sha256.
        sources: where to fetch it, tried in this order after the wheel: `file:///folder`, `hf://org/name`.
        revision: the Hub commit (40 hex digits) that `hf://` sources are read at; never a branch.
        format: format number of its config.json.
        feature_version: version of the feature schema's meaning.
        parameters: trained numbers, or the nodes of trees; None where it is not known.
        tvm: the TVM version whose programs it learnt from.
        family: device family; of a knowledge base the kind of the devices that it has learnt.
        data: what was measured: corpus, device, programs, tasks; of a knowledge base all its devices' together.
        metrics: top1, top5 and pairwise on the held-out networks.
        deprecated: why not to use it any more, or None.
    """

    name: str
    version: str
    arch: str
    family: str
    files: Mapping[str, FileRecord]
    format: int
    feature_schema: str
    weights_licence: str
    data_licence: str
    feature_version: int = 1
    parameters: int | None = None
    tvm: str = ""
    sources: tuple[str, ...] = ()
    revision: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    lineage: Mapping[str, Any] = field(default_factory=dict)
    deprecated: str | None = None

    @cached_property
    def semver(self) -> Version:
        """The version, ordered."""
        return Version.parse(self.version)

    @property
    def id(self) -> str:
        """`name@version`."""
        return f"{self.name}@{self.version}"

    @property
    def is_local(self) -> bool:
        """True for a checkpoint that was made on this machine."""
        return "+" in self.name

    @property
    def is_knowledge_base(self) -> bool:
        """True for a checkpoint of a kind of device, which further devices are added to."""
        return self.family in KINDS

    @property
    def lasting_files(self) -> tuple[str, str]:
        """The config and the weights: what makes this version what it is."""
        return CONFIG_FILE, next(name for name in WEIGHT_FILES if name in self.files)

    @property
    def origin(self) -> str:
        """`measured`: it learnt from programs of its own family; `transferred`: from others'; empty: not told."""
        told = self.lineage.get("data")
        return told if told in ORIGINS else ""

    @property
    def measured_on(self) -> tuple[str, ...]:
        """Names of the devices whose programs it learnt from, as far as it is told."""
        told = self.lineage.get("measured_on") or self.data.get("device") or ()
        return (told,) if isinstance(told, str) else tuple(map(str, told)) if isinstance(told, list) else ()

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(record.size for record in self.files.values())

    def as_dict(self) -> dict[str, Any]:
        """JSON form, as in index.json."""
        return asdict(self) | {"sources": list(self.sources)}

    @classmethod
    def from_dict(cls, raw: object, where: str = "index") -> Entry:
        """Read and check one entry.

        Raises:
            IndexFileError: a field is missing, of the wrong type, or unsafe (a path that leaves its folder).
        """
        if not isinstance(raw, dict):
            raise _bad(where, "an entry is not an object")
        where = f"{where}: {raw.get('name')}@{raw.get('version')}"[:200]
        for key in ("name", "version", "arch", "family", "feature_schema", "weights_licence", "data_licence"):
            if not isinstance(raw.get(key), str) or not raw[key]:
                raise _bad(where, f"{key} is missing or is not text")
        if not _is_int(raw.get("format")):
            raise _bad(where, "format is missing or is not a whole number")
        _check_name(raw, where)
        return cls(
            **{key: raw[key] for key in ("name", "version", "arch", "family", "format", "feature_schema")},
            weights_licence=raw["weights_licence"],
            data_licence=raw["data_licence"],
            files=_files(raw.get("files"), where),
            feature_version=_whole(raw.get("feature_version", 1), "feature_version", where),
            parameters=None if raw.get("parameters") is None else _whole(raw["parameters"], "parameters", where),
            tvm=_optional(raw, "tvm", str, "", where),
            sources=_sources(raw.get("sources", []), where),
            revision=_revision(raw.get("revision"), where),
            data=_optional(raw, "data", dict, {}, where),
            metrics=_metrics(raw, where),
            lineage=_optional(raw, "lineage", dict, {}, where),
            deprecated=_optional(raw, "deprecated", str, None, where),
        )


@dataclass(frozen=True)
class Index:
    """A list of entries, unique by name and version."""

    entries: tuple[Entry, ...] = ()

    @classmethod
    def read(cls, path: Path) -> Index:
        """Read an index file.

        Raises:
            IndexFileError: unreadable, of a newer format, or with a bad entry.
        """
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise _bad(str(path), str(error)) from error
        return cls.parse(text, str(path))

    @classmethod
    def parse(cls, text: str, where: str = "index") -> Index:
        """Read an index from its JSON text; raises IndexFileError."""
        try:
            raw = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise _bad(where, f"not JSON: {error}") from error
        if not isinstance(raw, dict) or not isinstance(raw.get("checkpoints"), list):
            raise _bad(where, "no list of checkpoints in it")
        check_format(raw.get("format"), INDEX_FORMAT, where)
        entries = tuple(Entry.from_dict(item, where) for item in raw["checkpoints"])
        ids = [entry.id for entry in entries]
        if len(set(ids)) != len(ids):
            raise _bad(where, f"listed twice: {sorted({i for i in ids if ids.count(i) > 1})}")
        return cls(entries)

    @classmethod
    def default(cls) -> Index:
        """The index of the wheel, or the file that the environment variable TCHUB_INDEX names."""
        override = os.environ.get("TCHUB_INDEX")
        if override:
            return cls.read(Path(override))
        return cls.parse((resources.files("tchub.hub.registry") / "index.json").read_text("utf-8"), "index.json")

    def to_json(self) -> str:
        """The file's text: sorted, so that equal indexes are equal bytes."""
        ordered = sorted(self.entries, key=lambda entry: (entry.name, entry.semver))
        body = {"format": INDEX_FORMAT, "checkpoints": [entry.as_dict() for entry in ordered]}
        return json.dumps(body, indent=2, sort_keys=True) + "\n"

    def merged(self, more: Iterable[Entry]) -> Index:
        """This index with further entries; a version of both stays as it is here (versions never change)."""
        known = {entry.id for entry in self.entries}
        return Index((*self.entries, *(entry for entry in more if entry.id not in known)))


def check_format(number: object, newest: int, where: str) -> None:
    """Refuse a file of a newer format, or one without a format number (raises IndexFileError)."""
    if not _is_int(number) or not isinstance(number, int) or number < 1:
        raise _bad(where, "no format number")
    if number > newest:
        raise IndexFileError(
            f"{where} has format {number}; this tchub reads up to {newest}",
            remedy="upgrade tchub: pip install -U tchub",
            path=where,
            format=number,
        )


def _bad(where: str, why: str) -> IndexFileError:
    return IndexFileError(
        f"{where} cannot be used: {why}", remedy="fetch the file again, or reinstall tchub", path=where
    )


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _whole(value: object, key: str, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _bad(where, f"{key} is not a whole number")
    return value


def _check_name(raw: dict[str, Any], where: str) -> None:
    try:
        parsed = CheckpointName.parse(f"{raw['name']}@{raw['version']}")
    except CheckpointNameError as error:
        raise _bad(where, error.message) from error
    if str(parsed) != f"{raw['name']}@{raw['version']}":
        raise _bad(where, "the name holds a version")


def _optional(raw: dict[str, Any], key: str, kind: type, default: Any, where: str) -> Any:
    value = raw.get(key)
    if value is None:
        return default
    if not isinstance(value, kind):
        raise _bad(where, f"{key} is not of type {kind.__name__}")
    return value


def _files(raw: object, where: str) -> dict[str, FileRecord]:
    if not isinstance(raw, dict):
        raise _bad(where, "files is missing")
    if CONFIG_FILE not in raw:
        raise _bad(where, f"files lacks {CONFIG_FILE}")
    if sum(name in raw for name in WEIGHT_FILES) != 1:
        raise _bad(where, f"files needs one of {', '.join(WEIGHT_FILES)}")
    return {name: _file(name, record, where) for name, record in raw.items()}


def _file(name: str, record: object, where: str) -> FileRecord:
    if not _FILE.fullmatch(name):
        raise _bad(where, f"file name {name[:80]!r} is not allowed")
    if not isinstance(record, dict) or not _is_int(record.get("size")) or not isinstance(record.get("sha256"), str):
        raise _bad(where, f"{name} has no size or sha256")
    if not 0 <= record["size"] <= MAX_FILE_BYTES or not _SHA256.fullmatch(record["sha256"]):
        raise _bad(where, f"{name} has an impossible size or sha256")
    return FileRecord(record["size"], record["sha256"])


def _sources(raw: object, where: str) -> tuple[str, ...]:
    if not isinstance(raw, list) or not all(isinstance(item, str) for item in raw):
        raise _bad(where, "sources is not a list of texts")
    return tuple(raw)


def _revision(raw: object, where: str) -> str | None:
    if raw is not None and not (isinstance(raw, str) and _COMMIT.fullmatch(raw)):
        raise _bad(where, "revision is not a commit (40 hex digits)")
    return raw


def _metrics(raw: dict[str, Any], where: str) -> dict[str, float | None]:
    metrics = _optional(raw, "metrics", dict, {}, where)
    for key, value in metrics.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise _bad(where, f"metric {key} is not a number")
    return metrics
