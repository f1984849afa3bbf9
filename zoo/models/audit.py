"""The first phase of loading: everything that can be refused without touching a tensor."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import BinaryIO

import torch
from torch import nn

from ..errors import TchubError
from ..untrusted import open_plain
from .base import ModelConfig
from .config import CheckpointConfig
from .errors import (
    CheckpointNotFoundError,
    CorruptCheckpointError,
    FeatureSchemaError,
    ModelConfigError,
)
from .files import WEIGHT_FILES
from .registry import create, get_architecture, make_config
from .tensor_header import Announced, read_header
from .tree_files import MAX_TREE_BYTES, check_trees
from .trees import TreeConfig

# The largest model of the papers is under 15 MB, the zoo's largest has 26: this stops a hostile or mistaken file.
MAX_WEIGHT_BYTES = 256 << 20


@dataclass(frozen=True)
class Audited:
    """A folder that passed: its config, and the very bytes that were checked, so that none changes later.

    Of trees the bytes are the checked file written anew, see `tree_files`.
    """

    config: CheckpointConfig
    weights: bytes


def audit(folder: Path) -> Audited:
    """Checks a checkpoint folder; see `Checkpoint.load` for what it raises."""
    config = CheckpointConfig.read(folder)
    model_config = _check_model(config, folder)
    check_schema(config, model_config, folder)
    path = folder / WEIGHT_FILES[get_architecture(config.arch).weights]
    try:
        with open_plain(path) as (file, size):
            return Audited(config, _read_weights(file, size, config.arch, model_config))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointNotFoundError(
            f"{path} is missing", remedy="fetch the checkpoint again", path=str(folder)
        ) from error
    except ModelConfigError as error:  # sizes that are each fine, but not together
        raise _corrupt(folder, f"its model settings are wrong: {error.message}") from error
    except (OSError, ValueError) as error:
        raise _corrupt(path, str(error)) from error


def check_schema(config: CheckpointConfig, model: ModelConfig, folder: Path) -> None:
    """The feature schema exists, means what it meant, and has the width that the model reads.

    Raises:
        FeatureSchemaError: it does not.
    """
    from ..features import get_schema

    name = config.feature_schema
    try:
        schema = get_schema(name)
    except (TchubError, KeyError) as error:
        raise _schema(folder, name, f"reads features {name!r}, which this release does not make") from error
    if schema.version != config.feature_version:
        told = f"reads version {config.feature_version} of {name}, this release makes {schema.version}"
        raise _schema(folder, name, told)
    if (schema.width, schema.hardware) != (model.width, model.hardware):
        told = f"names {name}, {schema.width} wide, hardware row: {schema.hardware}; its model reads width "
        raise _schema(folder, name, f"{told}{model.width}, hardware row: {model.hardware}")


def _check_model(config: CheckpointConfig, folder: Path) -> ModelConfig:
    get_architecture(config.arch)
    try:
        return make_config(config.arch, config.model)
    except ModelConfigError as error:
        raise _corrupt(folder, f"its model settings are wrong: {error.message}") from error


def _read_weights(file: BinaryIO, size: int, arch: str, model: ModelConfig) -> bytes:
    """The file's bytes, read no further than they have been checked; ValueError says what is wrong."""
    if size > MAX_WEIGHT_BYTES:
        raise ValueError(f"it is larger than {MAX_WEIGHT_BYTES >> 20} MiB")
    if isinstance(model, TreeConfig):
        weights = file.read(min(size, MAX_TREE_BYTES + 1))
        return check_trees(weights, get_architecture(arch).weights, model.columns)
    head, announced = read_header(file, size)
    _check_tensors(announced, arch, model, size)
    weights = head + file.read(size - len(head))
    if len(weights) != size:
        raise ValueError("it was cut short while it was read")
    return weights


def _check_tensors(found: dict[str, Announced], arch: str, model: ModelConfig, size: int) -> None:
    """Names, shapes and types against the architecture, built on no memory."""
    expected = _expected(arch, model, size)
    if missing := sorted(set(expected) - set(found)):
        raise ValueError(f"it lacks the tensor {missing[0]}")
    if extra := sorted(set(found) - set(expected)):
        raise ValueError(f"it holds the tensor {extra[0]!r:.80}, which {arch} does not have")
    for name, shape in expected.items():
        if found[name].shape != shape:
            raise ValueError(f"{name} has the shape {list(found[name].shape)}, not {list(shape)}")
        if found[name].dtype != "F32":
            raise ValueError(f"{name} is of type {found[name].dtype!r:.80}, not F32")
        if found[name].size != 4 * math.prod(shape):
            raise ValueError(f"{name} has {found[name].size} bytes, not {4 * math.prod(shape)}")


def _expected(arch: str, model: ModelConfig, size: int) -> dict[str, tuple[int, ...]]:
    """The tensors that the architecture has; of what is made of several networks one of them first.

    A knowledge base finds out where its laterals go by a pass through one part, for which it takes memory: not before
    it is known that the file is large enough to hold that part. The members of a committee are alike.
    """
    known = get_architecture(arch)
    with torch.device("meta"):
        if known.base:
            own = {f.name: getattr(model, f.name) for f in fields(get_architecture(known.base).config)}
            part = create(known.base, **own)
            if 4 * part.parameter_count() > size:
                raise ValueError(f"it is too short for its {part.parameter_count()} weights")
            if known.kind == "committee":
                return _of_members(_shapes(part), model.as_dict()["members"])
        return _shapes(known.model(model))


def _shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def _of_members(one: dict[str, tuple[int, ...]], count: int) -> dict[str, tuple[int, ...]]:
    """The tensors of a committee of so many networks, each with these."""
    return {f"members.{i}.{name}": shape for i in range(count) for name, shape in one.items()} | {"shares": (count,)}


def _corrupt(path: Path, what: str) -> CorruptCheckpointError:
    return CorruptCheckpointError(f"{path}: {what}", remedy="fetch or make the checkpoint again", path=str(path))


def _schema(folder: Path, name: str, told: str) -> FeatureSchemaError:
    return FeatureSchemaError(
        f"the checkpoint {folder} {told}",
        remedy="use the tchub release it was made for, or a newer checkpoint (`tchub list`)",
        path=str(folder),
        schema=name,
    )
