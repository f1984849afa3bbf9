"""What a run starts from: a knowledge base, or an architecture of which there is none yet."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from ...features import FeatureSchema, get_schema
from ...models import Checkpoint, Progressive, create, get_architecture
from ...training import TrainConfig, TrainResult, train
from ...training.inputs import resolve_schema
from ..continual import ContinualConfig, start_base
from ..errors import NotTrainableError
from .curriculum import Lesson
from .facts import learnt_devices


@dataclass(frozen=True)
class Beginning:
    """Where a run starts.

    Attributes:
        arch: the network that base and column are of.
        checkpoint: the knowledge base to go on with; None for a new one.
    """

    arch: str
    checkpoint: Checkpoint | None = None

    @classmethod
    def new(cls, arch: str) -> Beginning:
        """A base that knows nothing.

        Raises:
            UnknownArchitectureError: there is none of this name.
            NotTrainableError: it has no weights that gradients move, or is a knowledge base itself.
        """
        known = get_architecture(arch)
        if known.weights != "safetensors" or known.base:
            raise NotTrainableError(
                f"no knowledge base is made of {arch}",
                remedy="name a network, e.g. new:tcl or new:tilenet",
                arch=arch,
            )
        return cls(arch)

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Beginning:
        """A base that knows devices.

        Raises:
            NotAKnowledgeBaseError: it is an ordinary checkpoint.
        """
        learnt_devices(checkpoint.config)
        return cls(get_architecture(checkpoint.config.arch).base, checkpoint)

    def schema(self, recipe: TrainConfig, kind: str) -> FeatureSchema:
        """What the base reads: its own features, or a new one's for a kind of device, `cpu` or `gpu`."""
        if self.checkpoint is not None:
            return get_schema(self.checkpoint.config.feature_schema)
        return resolve_schema(recipe.feature_schema, kind)

    def identity(self) -> str:
        """What tells it from another one, in a line."""
        if self.checkpoint is None:
            return f"new:{self.arch}"
        config = self.checkpoint.config
        return f"{config.name}@{config.version} {json.dumps([d.sha256[:12] for d in learnt_devices(config)])}"


def first_base(
    arch: str,
    lesson: Lesson,
    schema: FeatureSchema,
    recipe: TrainConfig,
    config: ContinualConfig,
    seed: int,
    folder: Path,
    on_epoch: Callable[[dict[str, float]], None],
) -> tuple[Progressive, TrainResult]:
    """A base that knows one device: the network trained by its recipe, and what its weights are worth to the device."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = create(arch, **{"width": schema.width, "hardware": schema.hardware} | recipe.model)
    model.prepare(torch.from_numpy(lesson.train.features))
    result = train(model, lesson.train, lesson.val, recipe, seed, folder, on_epoch)
    return start_base(model, lesson.train, config, seed=seed), result
