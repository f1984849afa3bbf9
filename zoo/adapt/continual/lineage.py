"""What the config of a knowledge base records: every device learnt, and the tasks that it must never learn."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from ...corpus.schema import PROGRAMS_FILE
from ...features import FeatureSchema
from ...models import Checkpoint, CheckpointConfig, Progressive
from ...models.registry import get_architecture
from ...training.programs import corpus_device
from ...training.training_data import describe_corpus
from ..errors import AdaptError
from .config import DistillConfig

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
        gate: mean gate of the distillation (equations 10 and 11); None for the first device, which has none. It
            compares the device's batches with each other, and says nothing of the device.
        validation: scores on its validation tasks, of `before` (the base as it came), `column` and `base`.
        test: scores on its test tasks right after it was learnt, of `column` and `base`.
        warning: that the base ranks its validation tasks worse than before it learnt them; None: it does not, beyond
            doubt, or there are none.
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
    """Computations of the tasks of all devices so far, as hashes: an entry `seen` of `training`.

    Attributes:
        learnt: of tasks whose programs some device learnt; test: of test tasks of some device.
    """

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
    """Name and origin of a run's result.

    Attributes:
        name, version: of the checkpoint.
        command: that makes the same again, for the card.
        lineage: licence and authors, where known, beside the base's own lineage.
    """

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


def checkpoint_of(
    model: Progressive,
    corpus: Corpus,
    device: DeviceRecord,
    training: dict[str, Any],
    base: CheckpointConfig | None,
    before: CheckpointConfig | None,
    title: Title,
    schema: FeatureSchema,
) -> Checkpoint:
    """Return the checkpoint after a device.

    Args:
        model: the base that learnt it; corpus: that it learnt; device: its record.
        training: see `training_facts`.
        base: that the run began with, None for a new one; before: the config after the device before, if any.
        title: of the result.
        schema: that base and programs share.
    """
    devices = (*(learnt_devices(before) if before else ()), device)
    sheet = corpus_device(corpus)
    lineage = (base.lineage if base else {}) | title.lineage
    lineage |= {
        "base": base and f"{base.name}@{base.version}",
        "data": "measured",
        "measured_on": list(dict.fromkeys(one.device for one in devices)),
        "devices": [one.as_dict() for one in devices],
    }
    config = CheckpointConfig(
        name=title.name,
        version=title.version,
        arch=model.arch,
        model=model.config.as_dict(),
        feature_schema=schema.name,
        feature_version=schema.version,
        family=sheet.kind,
        # The hardware row holds the numbers of the device learnt last until another device's are given.
        device=sheet.to_dict(),
        lineage=lineage,
        training=training,
        tvm=str(corpus.meta.get("tvm_version") or (before.tvm if before else "")),
    )
    return Checkpoint(config, model.eval(), sheet)


def training_facts(
    model: Progressive,
    corpus: Corpus,
    device: DeviceRecord,
    seen: TaskKeys,
    without_features: int,
    seconds: float,
    before: CheckpointConfig | None,
    settings: DistillConfig,
) -> dict[str, Any]:
    """Return `training` of the config: corpora in the order of learning, the first as `corpus`, others as `sources`."""
    earlier = before.training if before else {}
    facts = describe_corpus(corpus) | {
        "tasks": device.tasks,
        "programs": device.programs,
        "programs_without_features": without_features,
    }
    return {
        "settings": settings.as_dict(),
        "seed": settings.seed,
        "seconds": round(float(earlier.get("seconds") or 0.0) + seconds, 1),
        "parameters": model.parameter_count(),
        "programs_per_task": settings.per_task,
        "corpus": earlier.get("corpus") or facts,
        "sources": [*(earlier.get("sources") or []), facts] if earlier.get("corpus") else [],
        "seen": seen.as_dict(),
    }
