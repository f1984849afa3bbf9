"""Checkpoints: a folder with `config.json` and a file of weights, loaded in two phases.

The weights are `model.safetensors`, or for trees `model.json` (XGBoost) or `model.txt` (LightGBM). First `audit`
reads the config and the header of the weights and checks all they promise: format, architecture and its
settings, feature schema, the name, shape and type of every tensor or the nodes of every tree, and the sizes.
Only then is a model made and a tensor read. There is no code and no pickle in any of the files.

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

from .audit import Audited, audit, check_schema
from .base import CostModel
from .config import CONFIG_FILE, FORMAT, CheckpointConfig
from .errors import CorruptCheckpointError
from .files import WEIGHT_FILES, write_folder
from .registry import get_architecture, make_config
from .trees import TreeModel

if TYPE_CHECKING:
    from ..devices import Device
    from ..primitives import PrimitiveSequence

__all__ = ["CONFIG_FILE", "FORMAT", "Checkpoint", "CheckpointConfig"]


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
        for start in range(0, len(sequences), batch_size):
            part = slice(start, start + batch_size)
            scores[part] = self.model.score(self.features(sequences[part]), batch_size)
        return scores

    @classmethod
    def load(cls, path: Path | str) -> Checkpoint:
        """Audits a folder, then loads it.

        Raises:
            CheckpointNotFoundError: the folder or a file in it is missing.
            NewerFormatError: the config was written by a newer release.
            CorruptCheckpointError: the files are damaged or do not fit each other.
            UnknownArchitectureError: this release does not know the architecture.
            MissingPackageError: trees, and their library is not installed.
            FeatureSchemaError: this release does not make the features that it reads.
            DeviceError: the device is unknown, and the config does not describe it.
        """
        folder = Path(path)
        audited = audit(folder)
        try:
            model = _restore(audited)
        except (SafetensorError, ValueError) as error:
            raise CorruptCheckpointError(
                f"the weights in {folder} cannot be used: {error}",
                remedy="fetch or train the checkpoint again",
                path=str(folder),
            ) from error
        return cls(audited.config, model.eval(), audited.config.resolve_device())

    def save(self, path: Path | str) -> None:
        """Writes both files, each atomically, the config last; weights are stored in float32.

        Raises:
            FeatureSchemaError: the config names features that this model does not read.
            NotFittedError: a model of trees has none yet.
            CheckpointError: the folder cannot be written.
        """
        folder = Path(path)
        check_schema(self.config, self.model.config, folder)
        name = WEIGHT_FILES[get_architecture(self.config.arch).weights]
        write_folder(folder, {name: _dump(self.model), CONFIG_FILE: self.config.to_json()})


def _dump(model: CostModel) -> bytes:
    if isinstance(model, TreeModel):
        return model.dump()
    tensors = {name: t.detach().cpu().float().contiguous().clone() for name, t in model.state_dict().items()}
    return safetensors.torch.save(tensors)


def _restore(audited: Audited) -> CostModel:
    """The model of weights that passed the audit; ValueError or SafetensorError where they cannot be used."""
    model = _build_empty(audited.config)
    if isinstance(model, TreeModel):
        model.restore(audited.weights)
        return model
    tensors = safetensors.torch.load(audited.weights)
    if bad := sorted(name for name, tensor in tensors.items() if not torch.isfinite(tensor).all()):
        raise ValueError(f"{bad[0]} holds NaN or infinite weights")
    model.load_state_dict(tensors)
    return model


def _build_empty(config: CheckpointConfig) -> CostModel:
    """The architecture without drawing random weights, which loading would overwrite."""
    architecture = get_architecture(config.arch)
    with torch.device("meta"):
        model = architecture.model(make_config(config.arch, config.model))
    return model.to_empty(device="cpu")
