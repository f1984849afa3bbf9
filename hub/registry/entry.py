"""Names, versions, and `Entry`: the facts of one version of a checkpoint, from an index or from a folder's files.

A name is `arch-family`, with `+local` for one adapted here, and `@1.2.0` for a version. A knowledge base is of a kind
of device, not of a family: `arch-kb-cpu`, `arch-kb-gpu`.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self, TypedDict

from msgspec import Meta

from .errors import CheckpointNameError
from .files import (
    CARD_FILE,
    CONFIG_FILE,
    METRICS_FILE,
    SCHEDULES_FILE,
    WEIGHTS_FILE,
    FileRecord,
    convert,
    read_json,
    records_of,
    unusable,
)

# Names become folder names, so the alphabet is what every file system takes, and ".." cannot occur.
_NAME = re.compile(
    r"(?P<arch>[a-z0-9]+(?:_[a-z0-9]+)*)-(?P<family>[a-z0-9]+(?:[._-][a-z0-9]+)*)"
    r"(?:\+(?P<variant>[a-z0-9]+(?:[._-][a-z0-9]+)*))?"
)
_VERSION = re.compile(r"(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})")
_MAX_LENGTH = 128
KINDS = ("cpu", "gpu")  # stands for a family in a knowledge base's entry, which has learnt several devices
_REMEDY = (
    "write arch-family, e.g. tcl-epyc, tcl-epyc@1.0.0 or tcl-epyc+local (`tchub list` shows all names), "
    "or a device family (`tchub devices`)"
)

ORIGINS = ("measured", "transferred")
METRICS = ("top1", "top5", "pairwise")
TRANSFER = ("pairwise", "top1", "tasks")
NEEDED_FILES = (CONFIG_FILE, WEIGHTS_FILE)
LASTING_FILES = (*NEEDED_FILES, SCHEDULES_FILE)  # what makes a version what it is
RECORD = "entry.json"  # the store's own, beside the files of a version
# A flat folder of weights, JSON and Markdown: no path can leave it, and no pickle can be named.
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,60}\.(?:json|safetensors|md)")
# One clause of a PEP 440 specifier; `packaging` takes all of these (a test holds them together) and loads slowly.
_CLAUSE = r"(?:[<>]=?|[=!]=)[0-9]{1,9}(?:\.[0-9]{1,9}){0,3}(?:(?:a|b|rc|\.post|\.dev)[0-9]{1,9})?"
# Facts of each device of a knowledge base; its scores are in metrics.json.
_DEVICE_FACTS = ("corpus", "device", "licence", "version", "gate")

Number = int | float
_Text = Annotated[str, Meta(min_length=1)]


class Version(NamedTuple):
    """A version `X.Y.Z`; ordered, and it never changes once published."""

    major: int
    minor: int
    patch: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `X.Y.Z`; raises CheckpointNameError."""
        if match := _VERSION.fullmatch(text):
            return cls(*map(int, match.groups()))
        message = f"{text[:_MAX_LENGTH]!r} is not a version"
        raise CheckpointNameError(message, remedy="write X.Y.Z, e.g. 1.0.0", version=text)

    def next_patch(self) -> Self:
        return self._replace(patch=self.patch + 1)

    def next_minor(self) -> Self:
        return self._replace(minor=self.minor + 1, patch=0)

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


@dataclass(frozen=True, slots=True)
class CheckpointName:
    """A parsed name. `variant` is set for checkpoints made on this machine, e.g. `local`."""

    arch: str
    family: str
    variant: str | None = None
    version: Version | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `arch-family[+variant][@X.Y.Z]`; raises CheckpointNameError for anything else."""
        name, at, version = text.partition("@")
        match = _NAME.fullmatch(name) if len(name) <= _MAX_LENGTH else None
        if not match:
            raise CheckpointNameError(f"{text[:_MAX_LENGTH]!r} is not a checkpoint name", remedy=_REMEDY, name=text)
        return cls(match["arch"], match["family"], match["variant"], Version.parse(version) if at else None)

    @property
    def base(self) -> str:
        return f"{self.arch}-{self.family}"

    @property
    def name(self) -> str:
        """The name without its version, which is also its folder's name."""
        return self.base + (f"+{self.variant}" if self.variant else "")

    def __str__(self) -> str:
        return self.name + (f"@{self.version}" if self.version else "")


class DeviceScores(TypedDict, total=False):
    """Scores on a device other than its own; `learnt` where the training has programs of that device."""

    pairwise: Number
    top1: Number
    tasks: Number
    learnt: bool


@dataclass(frozen=True)
class Entry:
    """One version of one checkpoint. It never changes once published.

    Attributes:
        files: file name -> size and sha256.
        format: format number of its config.json.
        feature_version: version of the feature schema's meaning.
        parameters: trained numbers; None where it is not known.
        tvm: the TVM version whose programs it learnt from.
        tvm_range: the TVM releases whose candidates it can score, as a PEP 440 specifier; empty for any.
        sources: where to fetch it, tried in this order after the wheel: `file:///folder`, `https://mirror`,
            `hf://org/name`.
        revision: the Hub commit (40 hex digits) that `hf://` sources are read at; never a branch.
        family: device family; of a knowledge base the kind of the devices that it has learnt.
        data: what was measured: corpus, device, programs, tasks; of a knowledge base all its devices' together.
        metrics: top1, top5 and pairwise on the held-out networks, and how many tasks those are.
        transfer: device -> scores on programs of that device other than its own held-out networks.
        deprecated: why not to use it any more, or None.
    """

    name: _Text
    version: _Text
    arch: _Text
    family: _Text
    files: Annotated[Mapping[str, FileRecord], Meta(max_length=32)]
    format: int
    feature_schema: _Text
    weights_licence: _Text
    data_licence: _Text
    feature_version: Annotated[int, Meta(ge=0)] = 1
    parameters: Annotated[int, Meta(ge=0)] | None = None
    tvm: str = ""
    tvm_range: Annotated[str, Meta(pattern=rf"\A(?:{_CLAUSE}(?:,{_CLAUSE})*)?\Z")] = ""
    sources: Annotated[tuple[Annotated[str, Meta(max_length=500)], ...], Meta(max_length=16)] = ()
    revision: Annotated[str, Meta(pattern=r"\A[0-9a-f]{40}\Z")] | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Number | None] = field(default_factory=dict)
    transfer: Annotated[Mapping[str, DeviceScores], Meta(max_length=256)] = field(default_factory=dict)
    lineage: Mapping[str, Any] = field(default_factory=dict)
    deprecated: str | None = None

    @cached_property
    def semver(self) -> Version:
        return Version.parse(self.version)

    @property
    def id(self) -> str:
        """`name@version`."""
        return f"{self.name}@{self.version}"

    @property
    def is_local(self) -> bool:
        """Made on this machine."""
        return "+" in self.name

    @property
    def is_knowledge_base(self) -> bool:
        """True for a checkpoint of a kind of device, which further devices are added to."""
        return self.family in KINDS

    def changed_in(self, other: Self) -> list[str]:
        """Return lasting files that another listing of this version has otherwise; a card may be corrected."""
        return [name for name in LASTING_FILES if self.files.get(name) != other.files.get(name)]

    @property
    def origin(self) -> str:
        """`measured`: it learnt from programs of its own family; `transferred`: from others'; empty: unknown."""
        origin = self.lineage.get("data")
        return origin if origin in ORIGINS else ""

    @property
    def measured_on(self) -> tuple[str, ...]:
        """Names of the devices whose programs it learnt from, as far as they are known."""
        names = self.lineage.get("measured_on") or self.data.get("device") or ()
        return (names,) if isinstance(names, str) else tuple(map(str, names)) if isinstance(names, list) else ()

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(record.size for record in self.files.values())

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form, as in index.json."""
        return asdict(self) | {"sources": list(self.sources)}

    @classmethod
    def from_dict(cls, raw: object, path: str = "index") -> "Entry":
        """Return the entry of a JSON object; raises IndexFileError for a field that is missing, wrong or unsafe."""
        return checked(convert(raw, cls, path), path)


def checked(entry: Entry, path: str) -> Entry:
    """Return an entry whose name and file names are safe to write; raises IndexFileError."""
    path = f"{path}: {entry.id}"[:200]
    try:
        CheckpointName.parse(entry.id)  # of "a-b@1.0.0" as a name, the version is none
    except CheckpointNameError as error:
        raise unusable(path, error.message) from error
    if absent := [name for name in NEEDED_FILES if name not in entry.files]:
        raise unusable(path, f"files lacks {', '.join(absent)}")
    if wrong := [name for name in entry.files if not _FILE.fullmatch(name) or name == RECORD]:
        raise unusable(path, f"file name {wrong[0][:80]!r} is not allowed")
    if len({name.lower() for name in entry.files}) < len(entry.files):
        raise unusable(path, "two file names that differ in their case alone, which some file systems take for one")
    return entry


def describe(folder: Path, name: str, version: str, *, no_licence: str | None = None, **facts: Any) -> Entry:
    """Return the entry of a checkpoint's files as they are now.

    Args:
        folder: holds config.json, the weights and maybe schedules.json, metrics.json and README.md.
        no_licence: what stands for a licence that is not given; None to refuse such a checkpoint.
        facts: fields of the entry that override what the files give, e.g. the licences.

    Raises:
        IndexFileError: a file is missing or unreadable, or a licence is not given.
        CardError: a field of config.json or metrics.json has the wrong type.
    """
    present = tuple(file for file in (*LASTING_FILES, METRICS_FILE, CARD_FILE) if (folder / file).is_file())
    if not set(NEEDED_FILES) <= set(present):
        reason = f"it is no whole checkpoint and has {', '.join(present) or 'no file of one'}"
        raise unusable(str(folder), reason, f"save {CONFIG_FILE} and {WEIGHTS_FILE}")
    config = read_json(folder / CONFIG_FILE)
    keys = ("arch", "family", "format", "feature_schema", "feature_version", "tvm")
    number = as_object(config.get("training")).get("parameters")
    raw = {key: config.get(key) for key in keys} | {"parameters": number if isinstance(number, int) else None}
    raw |= _facts(config, read_json(folder / METRICS_FILE)) | facts | {"name": name, "version": version}
    for key in ("weights_licence", "data_licence"):
        raw[key] = raw.get(key) or no_licence
    raw["files"] = {file: asdict(record) for file, record in records_of(folder, present).items()}
    return Entry.from_dict({key: value for key, value in raw.items() if value is not None}, str(folder))


def as_object(value: object) -> dict[str, Any]:
    """Return the value when it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def _facts(config: Mapping[str, Any], metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return licences, lineage, data and scores; of a knowledge base the data of all its corpora together."""
    from ...cards.metrics import decode, read_metrics
    from ...cards.schema import CardConfig, CorpusFacts
    from ...zoo.primitives.metaschedule import TVM_RELEASES

    card, run = decode(config, CardConfig, CONFIG_FILE), read_metrics(metrics)
    corpora, lineage = card.corpora, as_object(config.get("lineage"))
    if card.family in KINDS:
        devices = [as_object(device) for device in lineage.get("devices") or ()]
        lineage = lineage | {"devices": [{key: device.get(key) for key in _DEVICE_FACTS} for device in devices]}
        data: dict[str, Any] = {"name": ", ".join(corpus.name for corpus in corpora if corpus.name)}
        data |= {key: sum(getattr(corpus, key) or 0 for corpus in corpora) for key in ("programs", "tasks")}
    else:
        own = corpora[0] if corpora else CorpusFacts()
        data = {key: getattr(own, key) for key in ("name", "device", "cpu_model", "programs", "tasks")}
        data |= {"device": own.device or card.device.name}
    transfer: dict[str, dict[str, Any]] = {}
    for row in sorted(run.transfer, key=lambda row: row.tasks or 0):  # of several corpora of a device the largest
        if row.device:
            scores = {key: row.scores.value(key) for key in ("pairwise", "top1")}
            transfer[row.device] = _known(scores | {"tasks": row.tasks, "learnt": row.device_learnt or None})
    scores = {key: run.model.value(key) for key in METRICS} if run.model else {}
    return {
        "weights_licence": lineage.get("weights_licence"),
        "data_licence": ", ".join(dict.fromkeys(corpus.licence for corpus in corpora if corpus.licence)) or None,
        "lineage": lineage,
        "data": _known(data),
        "metrics": _known(scores | {"tasks": run.tasks}),
        "transfer": transfer,
        "tvm_range": TVM_RELEASES,
    }


def _known(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in facts.items() if value is not None}
