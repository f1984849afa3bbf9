"""`Entry`: what an index knows about one version of one checkpoint."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from .entry_files import CONFIG_FILE, WEIGHT_FILES, FileRecord, read_files
from .errors import CheckpointNameError
from .fields import bad, is_number, is_whole, optional, whole
from .names import KINDS, CheckpointName, Version

ORIGINS = ("measured", "transferred")
TRANSFER = ("pairwise", "top1", "tasks")
LEARNT = "learnt"
_MAX_SOURCES = 16
_MAX_SOURCE = 500  # characters
_MAX_DEVICES = 256
_COMMIT = re.compile(r"[0-9a-f]{40}")
# One clause of a PEP 440 specifier; `packaging` takes all of these (a test holds them together) and loads slowly.
_CLAUSE = re.compile(r"(?:[<>]=?|[=!]=)[0-9]{1,9}(?:\.[0-9]{1,9}){0,3}(?:(?:a|b|rc|\.post|\.dev)[0-9]{1,9})?", re.ASCII)


@dataclass(frozen=True)
class Entry:
    """One version of one checkpoint. It never changes once published.

    Attributes:
        files: file name -> size and sha256.
        sources: where to fetch it, tried in this order after the wheel: `file:///folder`, `https://mirror`,
            `hf://org/name`.
        revision: the Hub commit (40 hex digits) that `hf://` sources are read at; never a branch.
        format: format number of its config.json.
        feature_version: version of the feature schema's meaning.
        parameters: trained numbers, or the nodes of trees; None where it is not known.
        tvm: the TVM version whose programs it learnt from.
        tvm_range: the TVM releases whose candidates it can score, as a PEP 440 specifier; empty for any.
        family: device family; of a knowledge base the kind of the devices that it has learnt.
        data: what was measured: corpus, device, programs, tasks; of a knowledge base all its devices' together.
        metrics: top1, top5 and pairwise on the held-out networks, and how many tasks those are.
        transfer: device -> pairwise, top1 and tasks, measured on other programs of that device than its own
            held-out networks; `learnt` where it learnt from programs of the device.
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
    tvm_range: str = ""
    sources: tuple[str, ...] = ()
    revision: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    transfer: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
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

    def changed_in(self, other: Entry) -> list[str]:
        """Lasting files that another listing of this version has otherwise; card and metrics may be corrected."""
        return [name for name in self.lasting_files if other.files.get(name) != self.files[name]]

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
            raise bad(where, "an entry is not an object")
        where = f"{where}: {raw.get('name')}@{raw.get('version')}"[:200]
        for key in ("name", "version", "arch", "family", "feature_schema", "weights_licence", "data_licence"):
            if not isinstance(raw.get(key), str) or not raw[key]:
                raise bad(where, f"{key} is missing or is not text")
        if not is_whole(raw.get("format")):
            raise bad(where, "format is missing or is not a whole number")
        _check_name(raw, where)
        return cls(
            **{key: raw[key] for key in ("name", "version", "arch", "family", "format", "feature_schema")},
            weights_licence=raw["weights_licence"],
            data_licence=raw["data_licence"],
            files=read_files(raw.get("files"), where),
            feature_version=whole(raw, "feature_version", 1, where),
            parameters=None if raw.get("parameters") is None else whole(raw, "parameters", 0, where),
            tvm=optional(raw, "tvm", str, "", where),
            tvm_range=_tvm_range(raw, where),
            sources=_sources(raw.get("sources", []), where),
            revision=_revision(raw.get("revision"), where),
            data=optional(raw, "data", dict, {}, where),
            metrics=_metrics(raw, where),
            transfer=_transfer(raw, where),
            lineage=optional(raw, "lineage", dict, {}, where),
            deprecated=optional(raw, "deprecated", str, None, where),
        )


def _check_name(raw: dict[str, Any], where: str) -> None:
    try:
        parsed = CheckpointName.parse(f"{raw['name']}@{raw['version']}")
    except CheckpointNameError as error:
        raise bad(where, error.message) from error
    if str(parsed) != f"{raw['name']}@{raw['version']}":
        raise bad(where, "the name holds a version")


def _sources(raw: object, where: str) -> tuple[str, ...]:
    if not isinstance(raw, list) or not all(isinstance(item, str) for item in raw):
        raise bad(where, "sources is not a list of texts")
    if len(raw) > _MAX_SOURCES or any(len(item) > _MAX_SOURCE for item in raw):
        raise bad(where, f"more than {_MAX_SOURCES} sources, or one of more than {_MAX_SOURCE} characters")
    return tuple(raw)


def _revision(raw: object, where: str) -> str | None:
    if raw is not None and not (isinstance(raw, str) and _COMMIT.fullmatch(raw)):
        raise bad(where, "revision is not a commit (40 hex digits)")
    return raw


def _tvm_range(raw: dict[str, Any], where: str) -> str:
    text = optional(raw, "tvm_range", str, "", where)
    if text and not all(_CLAUSE.fullmatch(clause) for clause in text.split(",")):
        raise bad(where, f"tvm_range {text[:80]!r} is not a range of versions such as >=0.27,<0.28")
    return text


def _metrics(raw: dict[str, Any], where: str) -> dict[str, float | None]:
    metrics = optional(raw, "metrics", dict, {}, where)
    for key, value in metrics.items():
        if value is not None and not is_number(value):
            raise bad(where, f"metric {key} is not a number")
    return metrics


def _transfer(raw: dict[str, Any], where: str) -> dict[str, dict[str, float]]:
    rows = optional(raw, "transfer", dict, {}, where)
    if len(rows) > _MAX_DEVICES:
        raise bad(where, f"transfer to more than {_MAX_DEVICES} devices")
    for device, row in rows.items():
        if not isinstance(row, dict) or not all(_is_score(key, value) for key, value in row.items()):
            raise bad(where, f"transfer to {device[:80]} is not an object of the numbers {', '.join(TRANSFER)}")
    return rows


def _is_score(key: str, value: object) -> bool:
    return isinstance(value, bool) if key == LEARNT else key in TRANSFER and is_number(value)
