"""The saved state of a training run: one safetensors file, the tensors in it, the rest as JSON in its header.

One file is one atomic write: a state is there whole or not at all, and reading it runs no code.
"""

import csv
import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ..files import write_files
from ..models.base import CostModel
from ..plain_json import json_file
from .errors import TrainingError

STATE_FILE = "state.safetensors"
CURVE_FILE = "curve.csv"
PRETRAIN_FOLDER = "pretrain"
_FORMAT = 1
_NUMBERS = ("epoch", "steps", "history", "best_epoch", "best_score")


@dataclass
class TrainState:
    """The changing state of a run, besides the model's and the optimizer's own.

    Attributes:
        epoch: epochs done.
        steps: optimizer steps done.
        history: one entry an epoch.
        best: weights of the best epoch; best_epoch: -1 before the first evaluation; best_score: its metric.
        average: running mean of the weights, or None.
    """

    epoch: int = 0
    steps: int = 0
    history: list[dict[str, float]] = field(default_factory=list)
    best: dict[str, Tensor] = field(default_factory=dict)
    best_epoch: int = -1
    best_score: float = 0.0
    average: dict[str, Tensor] | None = None


def copied_weights(model: CostModel) -> dict[str, Tensor]:
    """Return copies of a model's weights and buffers, by name."""
    return {k: v.detach().clone() for k, v in model.state_dict().items()}


def has_state(folder: Path) -> bool:
    """Return whether a run was begun in this folder, be it in its first stage."""
    return any((part / CURVE_FILE).is_file() for part in (folder, folder / PRETRAIN_FOLDER))


def save_state(
    folder: Path, model: CostModel, optimizer: torch.optim.Optimizer, state: TrainState, identity: dict[str, Any]
) -> None:
    """Write `state.safetensors`, replacing the one before; a resumed run must have the same `identity`."""
    tensors = {f"model.{k}": v for k, v in model.state_dict().items()}
    tensors |= {f"best.{k}": v for k, v in state.best.items()}
    tensors |= {f"average.{k}": v for k, v in (state.average or {}).items()}
    for index, entries in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": torch.as_tensor(v) for name, v in entries.items()}
    numbers = {"format": _FORMAT, "identity": identity} | {name: getattr(state, name) for name in _NUMBERS}
    contiguous = {k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}
    write_files(folder, {STATE_FILE: save(contiguous, metadata={"state": json.dumps(numbers)})})


def load_state(
    folder: Path, model: CostModel, optimizer: torch.optim.Optimizer, fresh: TrainState, identity: dict[str, Any]
) -> TrainState:
    """Put a saved state into model and optimizer; return `fresh` where the folder has none.

    Raises:
        TrainingError: damaged, or of another recipe, seed, data set or model.
    """
    path = folder / STATE_FILE
    if not path.is_file():
        return fresh
    try:
        with safe_open(path, framework="pt") as file:
            numbers = json.loads((file.metadata() or {})["state"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise _refuse(path, f"is damaged ({error})") from error
    if numbers.get("format") != _FORMAT:
        raise _refuse(path, f"has format {numbers.get('format')!r}, this release reads {_FORMAT}")
    own = json.loads(json.dumps(identity))  # tuples become lists, numbers keep every bit
    if differing := [k for k in own if own[k] != numbers.get("identity", {}).get(k)]:
        raise _refuse(path, f"was made with another {', '.join(differing)}")
    parts: dict[str, dict[str, Tensor]] = {"model": {}, "best": {}, "average": {}, "optimizer": {}}
    for name, tensor in tensors.items():
        part, _, rest = name.partition(".")
        parts.setdefault(part, {})[rest] = tensor.to(next(model.parameters()).device)
    try:
        model.load_state_dict(parts["model"])
        entries: dict[int, dict[str, Tensor]] = {}
        for name, tensor in parts["optimizer"].items():
            index, _, key = name.partition(".")
            entries.setdefault(int(index), {})[key] = tensor
        optimizer.load_state_dict({"state": entries, "param_groups": optimizer.state_dict()["param_groups"]})
        values = {name: numbers[name] for name in _NUMBERS}
        return TrainState(best=parts["best"], average=parts["average"] or None, **values)
    except (KeyError, RuntimeError, ValueError) as error:
        raise _refuse(path, f"does not fit this model ({error})") from error


def _refuse(path: Path, reason: str) -> TrainingError:
    return TrainingError(
        f"the saved state {path} {reason}",
        remedy="train into another folder, or delete the file to start over",
        path=str(path),
    )


def write_curve(folder: Path, history: list[dict[str, float]]) -> None:
    """Write the history as `curve.csv`, one row an epoch, empty where an epoch was not evaluated."""
    columns = list(dict.fromkeys(name for entry in history for name in entry if name != "seconds"))
    text = io.StringIO()
    writer = csv.DictWriter(text, [*columns, "seconds"], restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(history)
    write_files(folder, {CURVE_FILE: text.getvalue().encode()})


def ensure_same_run(path: Path, identity: dict[str, Any], remedy: str) -> None:
    """Write the identity of a run into its folder, which is made, or check that the folder holds this very run.

    Args:
        identity: what two runs must have in common for one to go on where the other stopped, JSON-serialisable.

    Raises:
        TrainingError: the file is damaged, or tells of another run.
    """
    if not path.is_file():
        write_files(path.parent, {path.name: json_file(identity)})
        return
    try:
        recorded = json.loads(path.read_bytes())
        differing = [key for key in identity if recorded.get(key) != identity[key]]
    except (ValueError, AttributeError):
        differing = ["(damaged)"]
    if differing:
        raise TrainingError(
            f"{path} is of another run: {', '.join(differing)}", remedy=remedy, path=str(path), reason="another run"
        )
