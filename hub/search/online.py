"""Learning while tuning: measured programs by task, and fine-tuning of the base model on all of them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ...zoo.models import Checkpoint
    from ...zoo.training.dataset import RankingDataset


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


class _OutOfTimeError(Exception):
    """A fine-tuning took longer than it may."""


class _Deadline:
    """An `on_epoch` callback that ends a fine-tuning when its time is up."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def __call__(self, epoch: int, accuracy: float) -> None:
        if time.monotonic() > self._end:
            raise _OutOfTimeError
