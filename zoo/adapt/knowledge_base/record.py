"""The checkpoint after each device: weights, and a config that tells all devices so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...features import FeatureSchema
from ...models import Checkpoint, CheckpointConfig, Progressive
from ...training.gather import describe_corpus
from ...training.read import corpus_device
from .begin import Beginning
from .curriculum import Lesson
from .facts import LearntDevice, SeenTasks, learnt_devices, seen_tasks
from .settings import DistillSettings

if TYPE_CHECKING:
    from ...corpus import Corpus


@dataclass(frozen=True)
class Title:
    """What a run's result is called.

    Attributes:
        name, version: of the checkpoint.
        command: how to make the same again, for the card.
        lineage: what is known of licence and authors, beside what the base's own lineage says.
    """

    name: str
    version: str
    command: str | None = None
    lineage: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """A device that was just learnt.

    Attributes:
        model: the base after it; lesson: what it learnt; device: what the lineage will say; seconds: of training.
    """

    model: Progressive
    corpus: Corpus
    lesson: Lesson
    device: LearntDevice
    seconds: float


def record(start: Beginning, before: Checkpoint | None, step: Step, title: Title, settings: DistillSettings,
           schema: FeatureSchema) -> Checkpoint:  # fmt: skip
    """The checkpoint after a device.

    Args:
        start: of the run; before: the checkpoint of the device before, None for the first of a new base.
        step: the device.
        title, settings: of the run.
        schema: that base and programs share.
    """
    old = before.config if before else None
    devices = (*(learnt_devices(old) if old else ()), step.device)
    sheet = corpus_device(step.corpus)
    base = start.checkpoint.config if start.checkpoint else None
    lineage = (base.lineage if base else {}) | title.lineage
    lineage |= {
        "base": base and f"{base.name}@{base.version}",
        "data": "measured",
        "measured_on": list(dict.fromkeys(device.device for device in devices)),
        "devices": [device.as_dict() for device in devices],
    }
    config = CheckpointConfig(
        name=title.name,
        version=title.version,
        arch=step.model.arch,
        model=step.model.config.as_dict(),
        feature_schema=schema.name,
        feature_version=schema.version,
        family=sheet.kind,
        # Whose numbers the hardware row holds until another device's are given: those of the last one learnt.
        device=sheet.to_dict(),
        lineage=lineage,
        training=_training(old, step, title, settings),
        tvm=str(step.corpus.meta.get("tvm_version") or (old.tvm if old else "")),
    )
    return Checkpoint(config, step.model.eval(), sheet)


def _training(old: CheckpointConfig | None, step: Step, title: Title, settings: DistillSettings) -> dict[str, Any]:
    """The corpora in the order of learning, as a card reads them: the first under `corpus`, the others as `sources`."""
    told = old.training if old else {}
    facts = describe_corpus(step.corpus) | {
        "tasks": step.device.tasks,
        "programs": step.device.programs,
        "programs_without_features": step.lesson.without_features,
    }
    seen = (seen_tasks(old) if old else SeenTasks()).with_device(step.lesson.learnt, step.lesson.tested)
    return {
        "command": title.command,
        "settings": settings.as_dict(),
        "seed": settings.seed,
        "seconds": round(float(told.get("seconds") or 0.0) + step.seconds, 1),
        "parameters": step.model.parameter_count(),
        "programs_per_task": settings.per_task,
        "corpus": told.get("corpus") or facts,
        "sources": [*(told.get("sources") or []), facts] if told.get("corpus") else [],
        "seen": seen.as_dict(),
    }
