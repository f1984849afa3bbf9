"""`CardData`: every fact of a card, taken from config.json or metrics.json; none is typed by hand."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self

import msgspec

from ..zoo.devices import known_device
from ..zoo.trust import ClassTrust
from .metrics import CONFIG_FILE, CardMetrics, JsonFacts, bad_field, decode, read_metrics

MEASURED, TRANSFERRED = "measured", "transferred"
# A checkpoint of one of these families has learnt several devices of a kind; all others are for a device family.
KINDS = {"cpu": "CPUs", "gpu": "GPUs"}
# Without these a checkpoint cannot be compared with others.
_PUBLISHED_SCORES = ("top1", "top5", "pairwise")
_CORPUS_FACTS = ("name", "device", "licence", "programs", "tasks", "how")


class CorpusFacts(JsonFacts, frozen=True):
    """A corpus that the checkpoint learnt from; with 0 programs, a corpus for evaluation only.

    Attributes:
        threads: number of threads that its programs ran with; None if the log does not record it.
        programs, tasks: numbers learnt from; without_features: programs that the schema could not describe.
        source: where the log was published; how: how it was measured.
        held_out: networks whose tasks are in no training split.
    """

    name: str | None = None
    device: str | None = None
    cpu_model: str | None = None
    framework: str | None = None
    licence: str | None = None
    source: str | None = None
    threads: int | None = None
    programs: int | None = None
    tasks: int | None = None
    without_features: int | None = msgspec.field(default=None, name="programs_without_features")
    how: str | None = None
    networks: tuple[str, ...] = ()
    held_out: tuple[str, ...] = ()

    @property
    def unlicensed(self) -> bool:
        """True if the log came without a licence (`none found`)."""
        return self.licence is not None and self.licence.lower().startswith("none")

    @property
    def copyleft(self) -> bool:
        """True if the log is under a GNU licence."""
        return self.licence is not None and "GPL" in self.licence.upper()


class TrainingFacts(JsonFacts, frozen=True):
    """How the weights were trained.

    Attributes:
        seconds, machine, kilojoules: time of the training, its machine, and its energy if that was measured.
        stages: 2 if the sources were learnt first and then the target alone; init: checkpoint that it started from.
        parameters: number of trained parameters.
        programs_fraction, programs_per_task: share taken of the target's training programs.
        corpus: the target's; sources: the others. If sources are named, no task that computes the same as a test task
            was learnt from any corpus.
    """

    command: str | None = None
    seed: int | None = None
    seconds: float | None = None
    machine: str | None = None
    kilojoules: float | None = None
    parameters: int | None = None
    stages: int | None = None
    init: str | None = None
    programs_fraction: float | None = None
    programs_per_task: int | None = None
    corpus: CorpusFacts | None = None
    sources: tuple[CorpusFacts, ...] | None = None


class Lineage(JsonFacts, frozen=True):
    """Where the checkpoint comes from.

    Attributes:
        weights_licence: SPDX id; base: `name@version` that it was adapted from.
        data: `measured` when programs of the family's own devices are in the training, else `transferred`.
        measured_on: devices; stand_in: a sentence that names the device that stands in for the family's own.
        schedules: number of tasks whose schedules it contains.
    """

    weights_licence: str | None = None
    base: str | None = None
    authors: str | None = None
    limits: tuple[str, ...] = ()
    data: Literal["measured", "transferred"] | None = None
    measured_on: tuple[str, ...] = ()
    stand_in: str | None = None
    schedules: int | None = None


class DeviceFacts(JsonFacts, frozen=True):
    """Name and kind (`cpu` or `gpu`) of the device whose spec sheet the model reads."""

    name: str | None = None
    kind: str | None = None


class CardConfig(JsonFacts, frozen=True):
    """The part of config.json that a card shows."""

    name: str
    version: str
    arch: str
    family: str
    feature_schema: str
    tvm: str | None = None
    trust: dict[str, ClassTrust] = msgspec.field(default_factory=dict)
    model: dict[str, Any] = msgspec.field(default_factory=dict)
    device: DeviceFacts = msgspec.field(default_factory=DeviceFacts)
    lineage: Lineage = msgspec.field(default_factory=Lineage)
    training: TrainingFacts = msgspec.field(default_factory=TrainingFacts)

    @property
    def corpora(self) -> tuple[CorpusFacts, ...]:
        """The target's corpus first, then the sources; () when the config names none."""
        own = self.training.corpus
        return (*((own,) if own else ()), *(self.training.sources or ()))


@dataclass(frozen=True)
class Origin:
    """Devices of a checkpoint's training programs: those of its own device family, and the others.

    Attributes:
        data: `measured`, `transferred`, or None when the training's devices are not known.
        own: devices of the family that were measured; others: the other devices.
    """

    data: str | None
    own: tuple[str, ...]
    others: tuple[str, ...]


def origin_of(config: CardConfig) -> Origin:
    """Return where the training programs were measured; the corpora supply what the lineage does not state.

    Raises:
        CardError: the lineage is `measured`, but no program of the family is in the training.
    """
    lineage, known = config.lineage, {config.device.name}
    trained = [corpus.device for corpus in config.corpora if corpus.device and corpus.programs != 0]
    devices = tuple(dict.fromkeys(lineage.measured_on or trained))
    own = tuple(d for d in devices if not lineage.stand_in and (d in known or _belongs(d, config.family)))
    if lineage.data == MEASURED and not own:
        reason = f"is {MEASURED}, but no device of the family {config.family} is in the training"
        raise bad_field(CONFIG_FILE, "lineage.data", reason)
    follows = (MEASURED if own else TRANSFERRED) if devices else None
    return Origin(lineage.data or follows, own, tuple(d for d in devices if d not in own))


def _belongs(device: str, family: str) -> bool:
    """Return whether a device with a spec sheet is of a family, or of a kind."""
    known = known_device(device)
    return known is not None and family == (known.kind if family in KINDS else known.family)


@dataclass(frozen=True)
class CardData:
    """The facts of one card. None and () are left out, or shown as missing if a card must have them."""

    config: CardConfig
    metrics: CardMetrics
    origin: Origin

    @classmethod
    def from_files(cls, config: Mapping[str, Any], metrics: Mapping[str, Any]) -> Self:
        """Return the facts of config.json and metrics.json.

        Raises:
            CardError: a field has the wrong type, metrics.json is of a newer format, or the lineage claims
                measurements of a device that is in no corpus.
        """
        decoded = decode(config, CardConfig, CONFIG_FILE)
        return cls(decoded, read_metrics(metrics), origin_of(decoded))

    @property
    def corpus(self) -> CorpusFacts:
        """The target's corpus."""
        return next(iter(self.config.corpora), CorpusFacts())

    @property
    def licences(self) -> tuple[str, ...]:
        """Every licence of the corpora, each once."""
        return tuple(dict.fromkeys(corpus.licence for corpus in self.config.corpora if corpus.licence))

    @property
    def is_knowledge_base(self) -> bool:
        """True if it is for a kind of device, and made to learn further devices."""
        return self.config.family in KINDS

    @property
    def network(self) -> str:
        """The architecture of the network that scores."""
        return network_of(self.config.arch)

    @property
    def scope(self) -> str:
        """The devices whose programs it ranks, as text."""
        return KINDS.get(self.config.family) or f"devices of the family `{self.config.family}`"

    @property
    def trained_programs(self) -> int:
        """Programs learnt from, all corpora together."""
        return sum(corpus.programs or 0 for corpus in self.config.corpora)

    @property
    def own_programs(self) -> int:
        """Programs learnt from that were measured on the family's own devices."""
        return sum(corpus.programs or 0 for corpus in self.config.corpora if corpus.device in self.origin.own)

    @property
    def judged_on_own(self) -> bool:
        """True if the scores are of programs measured on a device of the family."""
        device = self.metrics.device
        return device is not None and (device in self.origin.own or _belongs(device, self.config.family))


def missing(data: CardData) -> tuple[str, ...]:
    """Return the facts that a card lacks for publication, as `file: field`; () if it is complete.

    A knowledge base is evaluated on several devices, so it needs no single device.
    """
    run, training, lineage = data.metrics, data.config.training, data.config.lineage
    wanted: dict[str, object] = {
        "config.json: lineage.weights_licence": lineage.weights_licence,
        "config.json: lineage.authors": lineage.authors,
        "config.json: training.command": training.command,
        "config.json: training.seed": training.seed,
        "config.json: training.seconds": training.seconds,
        "config.json: training.corpus": data.config.corpora,
        "config.json: devices that the training was measured on": data.origin.data,
        "metrics.json: corpus": run.corpus,
        "metrics.json: split": run.split,
        "metrics.json: device": run.device or run.devices,
        "metrics.json: tasks": run.tasks,
        "metrics.json: programs": run.programs,
        "metrics.json: results.random": run.results.get("random"),
    }
    scores = {key: run.model.value(key) if run.model else None for key in _PUBLISHED_SCORES}
    wanted |= {f"metrics.json: results.model.{key}": score for key, score in scores.items()}
    for number, corpus in enumerate(data.config.corpora):
        where = f"config.json: training.{'corpus' if number == 0 else f'sources[{number - 1}]'}"
        wanted |= {f"{where}.{key}": getattr(corpus, key) for key in _CORPUS_FACTS}
    return tuple(name for name, value in wanted.items() if value is None or value in ("", ()))


# Papers to cite, from `papers.toml`


class Paper(msgspec.Struct, frozen=True):
    """A paper; `papers.toml` describes its fields, and `kind` is the type of its BibTeX entry."""

    authors: tuple[str, ...]
    short: str
    title: str
    venue: str
    year: int
    key: str = ""
    kind: str = "inproceedings"
    architectures: tuple[str, ...] = ()
    method: str | None = None


@cache
def _papers() -> tuple[Paper, ...]:
    text = Path(__file__).with_name("papers.toml").read_bytes()
    papers = msgspec.toml.decode(text, type=dict[str, Paper])
    return tuple(msgspec.structs.replace(paper, key=key) for key, paper in papers.items())


def network_of(arch: str) -> str:
    """Return the architecture of the networks in a composed architecture; return any other architecture unchanged."""
    suffixes = [paper.method for paper in _papers() if paper.method and arch.endswith(paper.method)]
    return arch.removesuffix(suffixes[0]) if suffixes else arch


def papers_of(arch: str) -> tuple[Paper, ...]:
    """Return the papers to cite for an architecture, that of its networks first; () for tchub's own architectures."""
    own = [paper for paper in _papers() if network_of(arch) in paper.architectures]
    methods = [paper for paper in _papers() if paper.method and arch.endswith(paper.method)]
    return tuple(dict.fromkeys([*own, *methods]))
