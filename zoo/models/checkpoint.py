"""Checkpoints: a folder with `config.json` and `model.safetensors`, which holds no code.

`Checkpoint.load` first audits the folder: format, architecture and its settings, feature schema, sizes, and the name,
shape and type of every tensor. Only then it makes a model. safetensors itself checks that the header of the weights
and the tensors fit each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import BinaryIO, Self

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from ..devices import Device, get_device
from ..errors import TchubError
from ..features import get_schema
from ..files import write_files
from ..primitives import PrimitiveSequence
from ..untrusted import open_plain
from .base import BATCH, CostModel, ModelConfig
from .config import CONFIG_FILE, WEIGHTS_FILE, CheckpointConfig, corrupt
from .errors import CheckpointError, ModelConfigError
from .registry import create, get_architecture, make_config

# The zoo's largest has 26 MB in float32: this stops a hostile or mistaken file.
MAX_WEIGHT_BYTES = 256 << 20
# safetensors allows 100 MB; the largest header of the zoo has 20 KB.
MAX_HEADER_BYTES = 256 << 10
# Types that weights are stored in; the model computes in float32 in any case.
_TYPES = (torch.float32, torch.float16)


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
        """Return the model's input: float32, (N, rows, width)."""
        schema = get_schema(self.config.feature_schema)
        return schema.extract(sequences, self.device if schema.hardware else None)

    def score(self, sequences: Sequence[PrimitiveSequence]) -> np.ndarray:
        """Score the programs of one task, (N,) of float64; higher means faster, and only the order has a meaning."""
        scores = np.empty(len(sequences))
        for start in range(0, len(sequences), BATCH):
            part = slice(start, start + BATCH)
            scores[part] = self.model.score(self.features(sequences[part]))
        return scores

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Audit a folder, then load it.

        Raises:
            CheckpointError: a file is missing, the config is of a newer release, or this release does not make the
                features that the model reads.
            CorruptCheckpointError: the files are damaged or do not fit each other.
            ModelConfigError: this release does not know the architecture.
            UnknownDeviceError: the device is unknown, and the config does not describe it.
        """
        folder = Path(path)
        config = CheckpointConfig.read(folder)
        get_architecture(config.arch)
        try:
            model_config = make_config(config.arch, config.model)
        except ModelConfigError as error:
            raise corrupt(folder, f"its model settings are wrong: {error.message}") from error
        check_schema(config, model_config, folder)
        tensors = _audit_weights(folder, config.arch, model_config)
        with torch.device("meta"):  # without drawing random weights, which loading would overwrite
            model = get_architecture(config.arch).model(model_config)
        model = model.to_empty(device="cpu")
        model.load_state_dict(tensors)
        device = get_device(config.family) if config.device is None else Device.from_dict(config.device, config.name)
        return cls(config, model.eval(), device)

    def save(self, path: Path | str) -> None:
        """Write both files, each atomically, the config last; weights are stored in float32.

        Raises:
            CheckpointError: the config names features that this model does not read.
            StorageError: the folder cannot be written.
        """
        folder = Path(path)
        check_schema(self.config, self.model.config, folder)
        state = self.model.state_dict()
        weights = safetensors.torch.save({k: t.detach().cpu().float().contiguous().clone() for k, t in state.items()})
        write_files(folder, {WEIGHTS_FILE: weights, CONFIG_FILE: self.config.to_json()})


def check_schema(config: CheckpointConfig, model: ModelConfig, folder: Path) -> None:
    """Check that the feature schema exists, means the same, and has the width that the model reads.

    Raises:
        CheckpointError: it does not.
    """
    name = config.feature_schema
    try:
        schema = get_schema(name)
    except (TchubError, KeyError):
        problem = f"reads features {name!r}, which this release does not make"
    else:
        if schema.version != config.feature_version:
            problem = f"reads version {config.feature_version} of {name}, this release makes {schema.version}"
        elif (schema.width, schema.hardware) != (model.width, model.hardware):
            problem = f"names {name}, {schema.width} wide, hardware row: {schema.hardware}; its model reads width "
            problem += f"{model.width}, hardware row: {model.hardware}"
        else:
            return
    raise CheckpointError(
        f"the checkpoint {folder} {problem}",
        remedy="use the tchub release it was made for, or a newer checkpoint (`tchub list`)",
        path=str(folder),
    )


def _audit_weights(folder: Path, arch: str, model: ModelConfig) -> dict[str, Tensor]:
    path = folder / WEIGHTS_FILE
    try:
        with open_plain(path) as (file, size):
            tensors = safetensors.torch.load(_read(file, size))
            _check_tensors(tensors, arch, model, size)
            return tensors
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointError(f"{path} is missing", remedy="fetch the checkpoint again", path=str(folder)) from error
    except ModelConfigError as error:  # sizes that are each fine, but not together
        raise corrupt(folder, f"its model settings are wrong: {error.message}") from error
    except (OSError, ValueError, SafetensorError) as error:
        raise corrupt(path, str(error)) from error


def _read(file: BinaryIO, size: int) -> bytes:
    """Return the bytes of a file whose size and length of header are within bounds."""
    if size > MAX_WEIGHT_BYTES:
        raise ValueError(f"it is larger than {MAX_WEIGHT_BYTES >> 20} MiB")
    start = file.read(8)
    length = int.from_bytes(start, "little")
    if len(start) < 8 or not 2 <= length <= size - 8:
        raise ValueError("it is cut short or is no safetensors file")
    if length > MAX_HEADER_BYTES:
        raise ValueError(f"its header is larger than {MAX_HEADER_BYTES >> 10} KiB")
    return start + file.read(size - 8)


def _check_tensors(tensors: dict[str, Tensor], arch: str, model: ModelConfig, size: int) -> None:
    """Compare names, shapes and types with the architecture, built on no memory; refuse NaN and infinite weights."""
    expected = _expected_shapes(arch, model, size)
    if missing := sorted(set(expected) - set(tensors)):
        raise ValueError(f"it lacks the tensor {missing[0]}")
    if extra := sorted(set(tensors) - set(expected)):
        raise ValueError(f"it holds the tensor {extra[0]!r:.80}, which {arch} does not have")
    for name, shape in expected.items():
        tensor = tensors[name]
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name} has the shape {list(tensor.shape)}, not {list(shape)}")
        if tensor.dtype not in _TYPES:
            raise ValueError(f"{name} is of type {tensor.dtype}, not float32 or float16")
        if not torch.isfinite(tensor).all():
            raise ValueError(f"{name} holds NaN or infinite weights")


def _expected_shapes(arch: str, model: ModelConfig, size: int) -> dict[str, tuple[int, ...]]:
    """Return the tensors that the architecture has; for a combination of networks check one of them first.

    A knowledge base finds the layers of its laterals by a pass through one part, which takes memory: not before it is
    known that the file is large enough to hold that part.
    """
    known = get_architecture(arch)
    with torch.device("meta"):
        if known.base:
            own = {f.name: getattr(model, f.name) for f in fields(get_architecture(known.base).config)}
            weights = create(known.base, **own).parameter_count()
            if 2 * weights > size:
                raise ValueError(f"it is too short for its {weights} weights")
        return {name: tuple(tensor.shape) for name, tensor in known.model(model).state_dict().items()}
