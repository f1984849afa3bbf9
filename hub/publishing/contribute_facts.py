"""What a contribution starts from: its config, the facts that no measurement gives, its device, and how to train."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from ...zoo.corpus import Corpus
from ...zoo.corpus.schema import META_FILE, PROGRAMS_FILE, TASKS_FILE
from ...zoo.devices import Device, UnknownDeviceError, get_device
from ...zoo.files import file_sha256
from ...zoo.plain_json import json_file
from ..registry import CheckpointName, Registry, Version, find_checkpoint
from ..registry.errors import CheckpointNameError
from .check_files import is_spdx
from .errors import ContributionError

if TYPE_CHECKING:
    from ...zoo.models import Checkpoint
    from ...zoo.training import TrainConfig

_LICENCE = "an SPDX identifier, e.g. Apache-2.0 or CC-BY-4.0"
QUESTIONS = {
    "authors": "Who are the authors, as they are to be cited?",
    "weights_licence": f"Under which licence do you give the weights? ({_LICENCE})",
    "data_licence": f"And the programs measured here, with their latencies? ({_LICENCE})",
}
_LIMITS = "What should users know that no number tells? (empty: nothing)"
_LASTING = (*QUESTIONS, "limits")


class Asker(Protocol):
    """Prompt of a person at a terminal."""

    def text(self, question: str, wrong: Callable[[str], str | None]) -> str:
        """Return an answer for which `wrong` gives None; its sentence is shown, and the question put again, else."""
        ...

    def yes(self, question: str) -> bool:
        """Return whether the person agrees."""
        ...


class CardFacts(msgspec.Struct, frozen=True):
    """Facts that only a person knows; None where one is not given.

    Attributes:
        authors: names, as they are to be cited.
        weights_licence: SPDX identifier; data_licence: of the programs measured here, SPDX too.
        limits: what users should know that no number tells.
        name, version: of the checkpoint; by default `arch-family` and the next one that is free.
    """

    authors: str | None = None
    weights_licence: str | None = None
    data_licence: str | None = None
    limits: tuple[str, ...] | None = None
    name: str | None = None
    version: str | None = None

    def over(self, other: CardFacts) -> CardFacts:
        """Return these facts, and where one is not given that of `other`."""
        given = {key: value for key, value in msgspec.structs.asdict(self).items() if value is not None}
        return msgspec.structs.replace(other, **given)


@dataclass(frozen=True)
class ContributionConfig:
    """Settings of a contribution.

    Attributes:
        out: folder of all that is made.
        device, target, linker, threads: where and how to measure, see `choose_device`.
        workload: suites, networks or operators to measure; programs: in all.
        corpora: measured already, to learn from instead of measuring; the first one judges.
        recipe: how to train; that of the checkpoint's architecture unless given, else `tilenet`.
        checkpoint: its weights are the start.
        seed: of candidates and training.
        repo: of the Hub, to publish to; index_repo, index_named: as for `publish`.
        publish: publish at all; yes: without asking.
    """

    out: Path
    device: str = "local"
    target: dict[str, Any] | None = None
    linker: str | None = None
    threads: int | None = None
    workload: tuple[str, ...] = ("full",)
    programs: int = 12000
    corpora: tuple[Path, ...] = ()
    recipe: str | None = None
    checkpoint: str | None = None
    seed: int = 0
    facts: CardFacts = field(default_factory=CardFacts)
    repo: str | None = None
    index_repo: str | None = None
    index_named: bool = True
    publish: bool = True
    yes: bool = False

    @property
    def measures(self) -> bool:
        """True if programs are measured here."""
        return not self.corpora

    def corpus_folders(self, device: str) -> list[Path]:
        """Return the folders of the corpora as they are now; the first one judges, and a card calls it by its name."""
        return [self.out / "corpora" / device] if self.measures else list(self.corpora)

    @property
    def destination(self) -> str | None:
        """The repository that it goes to, once a person agrees; None where nothing leaves this machine."""
        return self.repo if self.publish else None


def gather_facts(config: ContributionConfig, earlier: Mapping[str, Any], ask: Asker | None) -> CardFacts:
    """Return the facts of the options, of an earlier run, or of the person at the terminal.

    Args:
        earlier: facts of an earlier run; they are not asked for again because another one is given now.
        ask: asks a person; None where nobody is there to ask.

    Raises:
        ContributionError: one is missing, and there is nobody to ask; or a licence is no SPDX identifier.
    """
    facts = config.facts.over(msgspec.convert({key: earlier.get(key) for key in _LASTING}, CardFacts))
    wanted = [key for key in QUESTIONS if config.measures or key != "data_licence"]
    missing = [key for key in wanted if not getattr(facts, key)]
    for key in set(wanted) - set(missing):
        if wrong := _wrong(key, getattr(facts, key)):
            raise ContributionError(f"{key}: {wrong}", reason="fact", remedy=f"give {_LICENCE}", key=key)
    if ask is None and missing:
        options = " ".join(f"--{key.replace('_', '-')} ..." for key in missing)
        message = f"facts are missing: {', '.join(missing)}"
        raise ContributionError(message, reason="facts", remedy=f"give {options}", missing=missing)
    answers: dict[str, Any] = {key: ask.text(QUESTIONS[key], partial(_wrong, key)) for key in missing} if ask else {}
    if facts.limits is None:
        limit = ask.text(_LIMITS, lambda _: None).strip() if ask else ""
        answers["limits"] = (limit,) if limit else ()
    return msgspec.structs.replace(facts, **answers)


def _wrong(key: str, text: str) -> str | None:
    """Return the fault of an answer, None for a good one."""
    if key == "authors":
        return None if text.strip() else "nobody is named"
    return None if is_spdx(text) else f"{text!r} is no SPDX licence"


def choose_name(facts: CardFacts, arch: str, family: str) -> CardFacts:
    """Return the facts with a name and a version: those given, else the zoo's name and the next free version.

    Raises:
        ContributionError: a name or a version that is none.
    """
    entries = Registry.default().index.entries
    usual = (entry.name for entry in entries if (entry.arch, entry.family) == (arch, family))
    name = facts.name or next(usual, f"{arch}-{family}")
    known = [entry.semver for entry in entries if entry.name == name]
    version = facts.version or str(max(known).next_minor() if known else Version(1, 0, 0))
    try:
        CheckpointName.parse(f"{name}@{version}")
    except CheckpointNameError as error:
        raise ContributionError(error.message, reason="fact", remedy=error.remedy, key="name") from error
    return msgspec.structs.replace(facts, name=name, version=version)


def find_device(config: ContributionConfig, note: Callable[[str], None]) -> Device:
    """Return the device of the programs, which must be one of the zoo's.

    Raises:
        ContributionError: it has no spec sheet.
    """
    if not config.measures:
        from ...zoo.training.programs import corpus_device

        device = corpus_device(Corpus.open(config.corpora[0]))
        get_device(device.family)
        return device
    from ..device.device_choice import choose_device

    facts = choose_device(config.device, config.threads, target=config.target, linker=config.linker).facts
    try:
        get_device(facts.family)
    except UnknownDeviceError as error:
        raise ContributionError(
            f"{facts.cpu_model} has no spec sheet",
            reason="device",
            remedy="run there: tchub devices add NAME --from local; correct the sheet that it writes, propose it as "
            "zoo/devices/data/NAME.json, and run this again",
        ) from error
    if not facts.exact:
        note(f"no spec sheet of its own: {'; '.join(facts.reasons[:1])}")
    return facts.device


def recipe_of(config: ContributionConfig) -> TrainConfig:
    """Return the recipe of the config, else that of the base's architecture.

    Raises:
        TrainingError: the base is made of several networks.
    """
    from ...zoo.models import get_architecture
    from ...zoo.training import TrainConfig, TrainingError

    if config.recipe or not config.checkpoint:
        return TrainConfig.find(config.recipe or "tilenet")
    base = load_base(config.checkpoint).config
    if (known := get_architecture(base.arch)).base:
        remedy = f"start from a plain {known.base}, or adapt this one: tchub adapt {base.name}"
        message = f"{base.name} is a {known.kind}, which no recipe trains"
        raise TrainingError(message, remedy=remedy, checkpoint=base.name)
    return TrainConfig.find(base.arch)


def load_base(name: str) -> Checkpoint:
    """Return the checkpoint whose weights are the start, by its name or folder."""
    from ...zoo.models import Checkpoint

    return Checkpoint.load(find_checkpoint(name))


def corpus_content(folder: Path) -> dict[str, str]:
    """Return all that a result depends on, wherever the corpus lies: name, and digests of facts, tasks and programs.

    Raises:
        CorpusError: the corpus is not there, or not whole.
    """
    corpus = Corpus.open(folder)
    facts = {key: value for key, value in corpus.meta.items() if key != "created"}
    digests = {name: file_sha256(corpus.path / name) for name in (TASKS_FILE, PROGRAMS_FILE)}
    return {"name": corpus.path.resolve().name, META_FILE: digest_of(facts)} | digests


def digest_of(value: Any) -> str:
    """Return the sha256 of a JSON value."""
    return hashlib.sha256(json_file(value)).hexdigest()


def sha256s(paths: Iterable[Path]) -> dict[str, str]:
    """Return the sha256 of files by name, and of all files in folders by their path there."""
    files = {path.name: path for path in paths if path.is_file()}
    files |= {str(f.relative_to(p.parent)): f for p in paths if p.is_dir() for f in sorted(p.rglob("*")) if f.is_file()}
    return {name: file_sha256(path) for name, path in files.items()}
