"""Records in the config of a knowledge base: every device learnt, and the tasks that it must never learn."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from ...corpus.schema import PROGRAMS_FILE
from ...models import CheckpointConfig
from ...models.registry import get_architecture
from ..errors import AdaptError

if TYPE_CHECKING:
    from ...corpus import Corpus

# Digits of a computation's hash: among 100,000 computations, two share one with a probability of 2 in 100,000.
_DIGITS = 12


@dataclass(frozen=True)
class DeviceRecord:
    """One device, in the order of learning: an entry of `lineage.devices`.

    Attributes:
        corpus: its folder's name; sha256: of its programs; device: where they were measured.
        version: of the knowledge base that learnt it first.
        tasks, programs: learnt from.
        licence, source: of the corpus.
        gate: mean gate of the distillation (see `phases.distill`); None for the first device, which has none.
        validation: scores on its validation tasks, of `before` (the base as it came), `column` and `base`.
        test: scores on its test tasks right after it was learnt, of `column` and `base`.
        warning: set if the base ranks its validation tasks worse than before it learnt them, beyond doubt.
    """

    corpus: str
    sha256: str
    device: str
    version: str
    tasks: int
    programs: int
    licence: str | None = None
    source: str | None = None
    gate: float | None = None
    validation: dict[str, dict[str, float]] = field(default_factory=dict)
    test: dict[str, dict[str, float]] = field(default_factory=dict)
    warning: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


@dataclass(frozen=True)
class TaskKeys:
    """Hashes of the computations of tasks: an entry `seen` of `training`; `learnt` from some device, or its `test`s."""

    learnt: frozenset[str] = frozenset()
    test: frozenset[str] = frozenset()

    def with_device(self, learnt: Iterable[str], test: Iterable[str]) -> TaskKeys:
        """Return the keys after one more device."""
        return TaskKeys(self.learnt | set(learnt), self.test | set(test))

    def as_dict(self) -> dict[str, list[str]]:
        """Return the JSON form."""
        return {"learnt": sorted(self.learnt), "test": sorted(self.test)}


@dataclass(frozen=True)
class Title:
    """Name and version of a run's result, the command that makes the same again, and its licence and authors."""

    name: str
    version: str
    command: str | None = None
    lineage: dict[str, Any] = field(default_factory=dict)


def learnt_devices(config: CheckpointConfig) -> tuple[DeviceRecord, ...]:
    """Return the devices of a knowledge base, first learnt first.

    Raises:
        AdaptError: the checkpoint is none, or does not record them; fields: name, arch.
    """
    if get_architecture(config.arch).kind != "knowledge base":
        raise AdaptError(
            f"{config.name} is an ordinary checkpoint of {config.arch}, not a knowledge base",
            remedy=f"begin one with `new:{config.arch}`, or adapt this one: tchub adapt {config.name}",
            name=config.name,
            arch=config.arch,
        )
    try:
        return msgspec.convert(config.lineage.get("devices"), tuple[DeviceRecord, ...])
    except msgspec.ValidationError as error:
        raise AdaptError(
            f"{config.name} does not record which devices it has learnt ({error})",
            remedy="use a knowledge base of `tchub distill`",
            name=config.name,
            arch=config.arch,
        ) from error


def seen_tasks(config: CheckpointConfig | None) -> TaskKeys:
    """Return the tasks of a knowledge base that `learnt_devices` reads; none where it does not record them."""
    seen = config.training.get("seen") if config else None
    return msgspec.convert(seen, TaskKeys) if isinstance(seen, dict) else TaskKeys()


def computation_key(computation: str) -> str:
    """Return the hash of a computation, for a config."""
    return hashlib.sha256(computation.encode()).hexdigest()[:_DIGITS]


def programs_digest(corpus: Corpus) -> str:
    """Return the sha256 of a corpus's programs, hex."""
    known = corpus.meta.get("files", {}).get(PROGRAMS_FILE, {}).get("sha256")
    if isinstance(known, str):
        return known
    with (corpus.path / PROGRAMS_FILE).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
