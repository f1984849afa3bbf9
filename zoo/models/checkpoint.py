"""Checkpoints: a folder with `config.json` and `model.safetensors`, loaded in two phases.

First `audit` reads the config and the header of the weights and checks all they promise: format, architecture
and its settings, feature schema, the name, shape and type of every tensor, and the sizes. Only then is a
model made and a tensor read. There is no code and no pickle in either file.

Raising `FORMAT`: raise it when a field is added, renamed or changes its meaning; teach `CheckpointConfig.
from_dict` to read the older form; keep a checkpoint of the older form among the tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError

from .audit import MODEL_FILE, audit, check_schema
from .base import CostModel
from .config import CONFIG_FILE, FORMAT, CheckpointConfig
from .errors import CorruptCheckpointError
from .files import write_folder
from .registry import get_architecture, make_config

if TYPE_CHECKING:
    from ..devices import Device
    from ..primitives import PrimitiveSequence

__all__ = ["CONFIG_FILE", "FORMAT", "MODEL_FILE", "Checkpoint", "CheckpointConfig"]


@dataclass(frozen=True)
class Checkpoint:
    """A model that is ready to score programs of its device.

    Attributes:
        config: name, version, architecture, feature schema, lineage.
        model: in evaluation mode.
        device: whose spec sheet is the hardware row.
    """

    config: CheckpointConfig
    model: CostModel
    device: Device

    def features(self, sequences: Sequence[PrimitiveSequence]) -> np.ndarray:
        """What the model reads: float32, (N, rows, width)."""
        from ..features import get_schema

        schema = get_schema(self.config.feature_schema)
        return schema.extract(sequences, self.device if schema.hardware else None)

    def score(self, sequences: Sequence[PrimitiveSequence], batch_size: int = 1024) -> np.ndarray:
        """Scores programs of one task; higher means faster, and only the order within a task has a meaning.

        Equal sequences are scored as often as they occur.

        Args:
            sequences: the programs.
            batch_size: programs a pass; bounds the memory.

        Returns:
            float64, shape (N,).
        """
        scores = np.empty(len(sequences))
        self.model.eval()
        place = next(self.model.parameters())
        with torch.inference_mode():
            for start in range(0, len(sequences), batch_size):
                part = slice(start, start + batch_size)
                x = torch.from_numpy(self.features(sequences[part])).to(place.device, place.dtype)
                scores[part] = self.model(x).double().cpu().numpy()
        return scores

    @classmethod
    def load(cls, path: Path | str) -> Checkpoint:
        """Audits a folder, then loads it.

        Raises:
            CheckpointNotFoundError: the folder or a file in it is missing.
            NewerFormatError: the config was written by a newer release.
            CorruptCheckpointError: the files are damaged or do not fit each other.
            UnknownArchitectureError: this release does not know the architecture.
            FeatureSchemaError: this release does not make the features that it reads.
            DeviceError: the device is unknown, and the config does not describe it.
        """
        folder = Path(path)
        audited = audit(folder)
        try:
            tensors = safetensors.torch.load(audited.weights)
        except SafetensorError as error:
            raise CorruptCheckpointError(
                f"{folder / MODEL_FILE} cannot be read: {error}",
                remedy="fetch the checkpoint again",
                path=str(folder),
            ) from error
        if bad := sorted(name for name, tensor in tensors.items() if not torch.isfinite(tensor).all()):
            raise CorruptCheckpointError(
                f"{folder / MODEL_FILE}: {bad[0]} holds NaN or infinite weights",
                remedy="fetch or train the checkpoint again",
                path=str(folder),
            )
        model = _build_empty(audited.config)
        model.load_state_dict(tensors)
        return cls(audited.config, model.eval(), audited.config.resolve_device())

    def save(self, path: Path | str) -> None:
        """Writes both files, each atomically, the config last; weights are stored in float32.

        Raises:
            FeatureSchemaError: the config names features that this model does not read.
            CheckpointError: the folder cannot be written.
        """
        folder = Path(path)
        check_schema(self.config, self.model.config, folder)
        tensors = {
            name: tensor.detach().cpu().float().contiguous().clone() for name, tensor in self.model.state_dict().items()
        }
        write_folder(folder, {MODEL_FILE: safetensors.torch.save(tensors), CONFIG_FILE: self.config.to_json()})


def _build_empty(config: CheckpointConfig) -> CostModel:
    """The architecture without drawing random weights, which loading would overwrite."""
    architecture = get_architecture(config.arch)
    with torch.device("meta"):
        model = architecture.model(make_config(config.arch, config.model))
    return model.to_empty(device="cpu")
