"""Learning while tuning: measured programs by task, and fine-tuning of the base model on all of them."""

from __future__ import annotations

import copy
import json
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..records.store import RunStateError

if TYPE_CHECKING:
    from torch import Tensor

    from ...zoo.models import Checkpoint
    from ...zoo.training.dataset import RankingDataset

STATE_FORMAT = 1


@dataclass(frozen=True)
class OnlineSettings:
    """Fine-tuning during a tuning run.

    Attributes:
        min_programs: valid programs in all before the first fine-tuning.
        growth: fine-tune again when the valid programs grew by this share since the last time.
        epochs: passes over the tasks, at most; patience: passes without a better validation.
        max_seconds: wall time of one fine-tuning, at most; past it the weights stay as they were.
        seed: of the validation choice and the order of tasks.
    """

    min_programs: int = 16
    growth: float = 0.2
    epochs: int = 24
    patience: int = 6
    max_seconds: float = 20.0
    seed: int = 0


class OnlineLearner:
    """Keeps features (N, rows, width) and latencies of each task, and a checkpoint that learns from them.

    Each fine-tuning starts from the base weights and stays near them (`zoo.adapt.fine_tune`), so that the
    result depends on what was measured and not on how often it was asked for.

    Args:
        base: the checkpoint to begin with.
        settings: of the fine-tuning.
        most: programs of a task to keep, the last ones; None: all.

    Attributes:
        checkpoint: the one to score with; replaced by every fine-tuning.
    """

    def __init__(self, base: Checkpoint, settings: OnlineSettings, most: int | None = None) -> None:
        self.base = base
        self.checkpoint = base
        self.settings = settings
        self._most = most
        self._features: dict[str, deque[np.ndarray]] = {}
        self._latencies: dict[str, deque[float]] = {}
        self._trained_on = 0

    @property
    def programs(self) -> int:
        """Return the number of valid programs kept."""
        return sum(map(len, self._latencies.values()))

    def add(self, task: str, features: np.ndarray, latencies: Sequence[float]) -> None:
        """Remember a measured batch (n, rows, width), latencies in seconds; failed programs teach nothing."""
        valid = [i for i, x in enumerate(latencies) if np.isfinite(x) and x > 0]
        if not valid:
            return
        kept = self._features.setdefault(task, deque(maxlen=self._most))
        kept.extend(features[i].copy() for i in valid)  # a row of an array would keep all of it
        times = self._latencies.setdefault(task, deque(maxlen=self._most))
        times.extend(float(latencies[i]) for i in valid)

    def measured(self, task: str) -> tuple[np.ndarray, np.ndarray]:
        """Return features (n, rows, width) and latencies (n,) in seconds of a task's programs, in their order."""
        if task not in self._features:
            return np.zeros((0, 1, self.base.model.config.width), np.float32), np.zeros(0)
        return np.stack(list(self._features[task])), np.array(self._latencies[task])

    def due(self) -> bool:
        """Return True where enough was measured since the last fine-tuning."""
        comparable = any(len(set(values)) > 1 for values in self._latencies.values())
        enough = self.programs >= self.settings.min_programs
        return comparable and enough and self.programs > self._trained_on * (1 + self.settings.growth)

    def step(self) -> bool:
        """Fine-tune if due; returns whether the weights changed."""
        if not self.due():
            return False
        from ...zoo.adapt.fine_tune import FineTuneConfig, fine_tune

        self._trained_on = self.programs
        options = self.settings
        config = FineTuneConfig(
            epochs=options.epochs, blind_epochs=options.patience, patience=options.patience, seed=options.seed
        )
        try:
            result = fine_tune(self.base.model, self.dataset(), config, _Deadline(options.max_seconds))
        except _OutOfTimeError:
            return False
        self.checkpoint = replace(self.base, model=result.model)
        return True

    def dataset(self) -> RankingDataset:
        """Return everything measured as training data."""
        from ...zoo.training.dataset import RankingDataset

        names = tuple(self._features)
        group = np.repeat(np.arange(len(names)), [len(self._features[name]) for name in names])
        features = np.stack([row for name in names for row in self._features[name]]).astype(np.float32)
        latency = np.array([x for name in names for x in self._latencies[name]], dtype=np.float64)
        return RankingDataset(features, latency, group.astype(np.int64), names, np.ones(len(names)))

    def save(self, path: Path) -> None:
        """Write weights and measurements to a safetensors file, atomically."""
        import torch
        from safetensors.torch import save_file

        tensors = {f"model.{k}": v.contiguous() for k, v in self.checkpoint.model.state_dict().items()}
        for i, name in enumerate(self._features):
            tensors[f"features.{i}"] = torch.from_numpy(np.stack(list(self._features[name])))
            tensors[f"latencies.{i}"] = torch.tensor(list(self._latencies[name]), dtype=torch.float64)
        header = self._identity() | {"trained_on": str(self._trained_on), "tasks": json.dumps(list(self._features))}
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(path.name + ".part")
        save_file(tensors, temporary, metadata=header)
        temporary.replace(path)

    def load(self, path: Path) -> None:
        """Read what `save` wrote.

        Raises:
            RunStateError: another format, another checkpoint or feature schema, or a damaged file.
        """
        header, tensors = _read_state(path)
        mine, theirs = self._identity(), {key: header.get(key) for key in self._identity()}
        if mine != theirs:
            raise RunStateError(
                f"{path} holds the state of {theirs}, not of {mine}",
                remedy="start the tuning run in a new output folder",
                path=str(path),
            )
        model = copy.deepcopy(self.base.model)
        try:
            model.load_state_dict({k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")})
            tasks = json.loads(header["tasks"])
            features = {name: deque(tensors[f"features.{i}"].numpy(), self._most) for i, name in enumerate(tasks)}
            latencies = {name: deque(tensors[f"latencies.{i}"].tolist(), self._most) for i, name in enumerate(tasks)}
            trained_on = int(header["trained_on"])
        except (KeyError, ValueError, RuntimeError) as error:
            raise _damaged(path, error) from error
        self.checkpoint = replace(self.base, model=model)
        self._features, self._latencies, self._trained_on = features, latencies, trained_on

    def _identity(self) -> dict[str, str]:
        config = self.base.config
        return {
            "format": str(STATE_FORMAT),
            "checkpoint": f"{config.name}@{config.version}",
            "feature_schema": config.feature_schema,
        }


class _OutOfTimeError(Exception):
    """A fine-tuning took longer than it may."""


class _Deadline:
    """An `on_epoch` callback that ends a fine-tuning when its time is up."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def __call__(self, epoch: int, accuracy: float) -> None:
        if time.monotonic() > self._end:
            raise _OutOfTimeError


def _read_state(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return file.metadata() or {}, {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Any) -> RunStateError:
    return RunStateError(
        f"cannot read the cost model's state in {path}: {error}",
        remedy="delete the file: it is rebuilt from the database",
        path=str(path),
    )
