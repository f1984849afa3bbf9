"""Models that took long to train, kept on disk: a run that was killed trains none of them again.

This is the only way in which methods of adapting resume. A training is known by the digest of its inputs. While it
runs, its epochs are kept in a folder of that name (`zoo.training.train` reads and writes it); when it is done, the
model replaces the folder.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from ..models import CostModel, create
from ..files import write_files

# Raise when what a file holds changes its meaning.
FORMAT = 2
# Seconds from which a training without epochs on disk is worth a file.
LEAST_SECONDS = 5.0

Training = Callable[[Path | None], tuple[CostModel, dict[str, Any]]]


def model_digest(model: CostModel) -> str:
    """Return sha256 hex, 16 digits, of a model's architecture, sizes and weights."""
    digest = hashlib.sha256(repr((model.arch, sorted(model.config.as_dict().items()))).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def key_digest(parts: Iterable[str]) -> str:
    """Return 24 hex digits for a key made of several strings, for a file's name."""
    return hashlib.sha256(repr((FORMAT, *parts)).encode()).hexdigest()[:24]


def cached_model(
    folder: Path | None, key: Iterable[str], train: Training, least_seconds: float = 0.0
) -> tuple[CostModel, dict[str, Any]]:
    """Return the model of `train`, or that of an earlier run with the same key.

    Args:
        folder: where models are kept; None keeps none.
        key: strings that differ for any two different trainings.
        train: trains a model, given the folder for its epochs or None, and returns it with JSON-serialisable facts.
        least_seconds: of training, below which a model is not worth the room on disk.

    Raises:
        CheckpointError: the folder cannot be written.
    """
    if folder is None:
        return train(None)
    state = folder / key_digest(key)
    path = state.with_suffix(".safetensors")
    result = _read(path)
    if result is None:
        began = time.perf_counter()
        result = train(state)
        if time.perf_counter() - began >= least_seconds:
            _write(path, *result)
            shutil.rmtree(state, ignore_errors=True)
    return result


def _read(path: Path) -> tuple[CostModel, dict[str, Any]] | None:
    """None where there is no whole file: the model is then trained anew."""
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})["model"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        with torch.random.fork_rng(devices=[]):
            model = create(header["arch"], **header["config"])
        model.load_state_dict(tensors)
    except (OSError, SafetensorError, KeyError, ValueError, RuntimeError):
        return None
    return model.eval(), header["facts"]


def _write(path: Path, model: CostModel, facts: dict[str, Any]) -> None:
    header = {"arch": model.arch, "config": model.config.as_dict(), "facts": facts}
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in model.state_dict().items()}
    write_files(path.parent, {path.name: save(tensors, metadata={"model": json.dumps(header)})})
