"""Models that took long to train, kept on disk: a run that was killed trains none of them again."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from ..models import CostModel, create
from ..models.files import write_folder

# Raise when what a file holds changes its meaning.
FORMAT = 1


def model_mark(model: CostModel) -> str:
    """sha256 hex, 16 digits, of a model's architecture, sizes and weights."""
    digest = hashlib.sha256(repr((model.arch, sorted(model.config.as_dict().items()))).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def mark_of(words: Iterable[str]) -> str:
    """24 hex digits that tell some words from any others, for a file's name."""
    return hashlib.sha256(repr((FORMAT, *words)).encode()).hexdigest()[:24]


def kept_model(
    folder: Path | None,
    inputs: Iterable[str],
    train: Callable[[], tuple[CostModel, dict[str, Any]]],
    least_seconds: float = 0.0,
) -> tuple[CostModel, dict[str, Any]]:
    """What `train` gives, or gave an earlier run for the same inputs.

    Args:
        folder: where models are kept; None keeps none.
        inputs: words that tell this training from any other.
        train: trains a model and gives it with JSON-serialisable facts.
        least_seconds: of training, below which a model is not worth the room on disk.

    Raises:
        CheckpointError: the folder cannot be written.
    """
    if folder is None:
        return train()
    path = folder / f"{mark_of(inputs)}.safetensors"
    found = _read(path)
    if found is None:
        began = time.perf_counter()
        found = train()
        if time.perf_counter() - began >= least_seconds:
            _write(path, *found)
    return found


def _read(path: Path) -> tuple[CostModel, dict[str, Any]] | None:
    """None where there is no whole file: it is then trained anew."""
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
    write_folder(path.parent, {path.name: save(tensors, metadata={"model": json.dumps(header)})})
