"""The first phase of loading: everything that can be refused without touching a tensor."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..errors import TchubError
from .base import ModelConfig
from .config import CheckpointConfig
from .errors import (
    CheckpointNotFoundError,
    CorruptCheckpointError,
    FeatureSchemaError,
    ModelConfigError,
)
from .files import WEIGHT_FILES
from .registry import get_architecture, make_config
from .tree_files import check_trees
from .trees import TreeConfig

# The largest model of the papers is under 15 MB; these stop a hostile or mistaken file.
MAX_WEIGHT_BYTES = 256 << 20
MAX_HEADER_BYTES = 1 << 20


@dataclass(frozen=True)
class Audited:
    """A folder that passed: its config, and the very bytes that were checked, so that none changes later."""

    config: CheckpointConfig
    weights: bytes


def audit(folder: Path) -> Audited:
    """Checks a checkpoint folder; see `Checkpoint.load` for what it raises."""
    config = CheckpointConfig.read(folder)
    model_config = _check_model(config, folder)
    check_schema(config, model_config, folder)
    kind = get_architecture(config.arch).weights
    path = folder / WEIGHT_FILES[kind]
    weights = _read_weights(path)
    if kind == "safetensors":
        _check_tensors(_read_header(weights, path), config, model_config, path)
    elif isinstance(model_config, TreeConfig):
        _check_trees(weights, kind, model_config, path)
    return Audited(config, weights)


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


def _read_weights(path: Path) -> bytes:
    if not path.is_file():
        raise CheckpointNotFoundError(f"{path} is missing", remedy="fetch the checkpoint again", path=str(path.parent))
    if path.stat().st_size > MAX_WEIGHT_BYTES:
        raise _corrupt(path, f"it is larger than {MAX_WEIGHT_BYTES >> 20} MiB")
    return path.read_bytes()


def _read_header(data: bytes, path: Path) -> dict[str, dict[str, Any]]:
    """The tensors that a safetensors file announces: 8 bytes of header length, a JSON header, the numbers."""
    size = int.from_bytes(data[:8], "little") if len(data) >= 8 else -1
    if not 0 <= size <= min(MAX_HEADER_BYTES, len(data) - 8):
        raise _corrupt(path, "it is cut short or is no safetensors file")
    try:
        header = json.loads(data[8 : 8 + size])
        header.pop("__metadata__", None)
        spans = sorted((int(a), int(b)) for a, b in (entry["data_offsets"] for entry in header.values()))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _corrupt(path, f"its header cannot be read ({error!r})") from error
    ends = [0, *(b for _, b in spans)]
    if any(a != end for (a, _), end in zip(spans, ends, strict=False)) or 8 + size + ends[-1] != len(data):
        raise _corrupt(path, "its tensors do not fill it: it is cut short or has something added")
    return header


def _check_tensors(header: dict[str, dict[str, Any]], config: CheckpointConfig, model: ModelConfig, path: Path) -> None:
    """Names, shapes and types against the architecture, built on no memory."""
    try:
        with torch.device("meta"):
            expected = get_architecture(config.arch).model(model).state_dict()
    except ModelConfigError as error:  # sizes that are each fine, but not together
        raise _corrupt(path, f"its model settings are wrong: {error.message}") from error
    if missing := sorted(set(expected) - set(header)):
        raise _corrupt(path, f"it lacks the tensor {missing[0]}")
    if extra := sorted(set(header) - set(expected)):
        raise _corrupt(path, f"it holds the tensor {extra[0]}, which {config.arch} does not have")
    for name, tensor in expected.items():
        found, wanted = header[name].get("shape"), list(tensor.shape)
        if found != wanted:
            raise _corrupt(path, f"{name} has the shape {found}, not {wanted}")
        if header[name].get("dtype") != "F32":
            raise _corrupt(path, f"{name} is of type {header[name].get('dtype')}, not F32")
        first, last = header[name]["data_offsets"]
        if last - first != 4 * math.prod(wanted):
            raise _corrupt(path, f"{name} has {last - first} bytes, not {4 * math.prod(wanted)}")


def _check_trees(weights: bytes, library: str, model: TreeConfig, path: Path) -> None:
    try:
        check_trees(weights, library, model.columns)
    except ValueError as error:
        raise _corrupt(path, str(error)) from error


def _corrupt(path: Path, what: str) -> CorruptCheckpointError:
    return CorruptCheckpointError(f"{path}: {what}", remedy="fetch or make the checkpoint again", path=str(path))


def _schema(folder: Path, name: str, told: str) -> FeatureSchemaError:
    return FeatureSchemaError(
        f"the checkpoint {folder} {told}",
        remedy="use the tchub release it was made for, or a newer checkpoint (`tchub list`)",
        path=str(folder),
        schema=name,
    )
