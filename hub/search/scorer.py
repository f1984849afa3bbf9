"""Scores of programs by one checkpoint, for many tasks, and what it learns from measured ones; knows no TVM."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...zoo.machine import one_thread
from .errors import TuningError

if TYPE_CHECKING:
    from ...zoo.models import Checkpoint
    from ...zoo.models.context import TaskPosterior
    from ...zoo.training.dataset import RankingDataset

UPDATES = ("auto", "none", "context", "few-shot")
# A task's scores are centred on the first batch that holds this many programs (a search's first
# population has hundreds): fewer would make the centre and the spread a matter of luck.
CALIBRATION_SIZE = 16


class Squash:
    """A task's monotone map from raw scores to (0, 1).

    MetaSchedule clips scores at zero and draws parents in proportion to them; it also compares scores of
    different generations. So the map must be positive, not saturated where the candidates are, and the
    same from call to call: the centre and spread are fixed by the first large batch of a task.
    """

    def __init__(self) -> None:
        self._centre: float | None = None
        self._spread = 1.0

    def __call__(self, raw: np.ndarray) -> np.ndarray:
        """Map raw scores, shape (N,), any real, to (0, 1), shape (N,), order kept."""
        centre, spread = self._centre, self._spread
        if centre is None:
            centre, spread = float(np.mean(raw)), float(np.std(raw)) or 1.0
            if len(raw) >= CALIBRATION_SIZE:
                self._centre, self._spread = centre, spread
        z = (raw - centre) / spread
        return 0.5 * (1.0 + z / (1.0 + np.abs(z)))  # softsign: unlike a sigmoid, never rounds to 1.0


def check_update(update: str) -> None:
    """Raise ValueError unless `update` is one of `UPDATES`."""
    if update not in UPDATES:
        raise ValueError(f"update must be one of {', '.join(map(repr, UPDATES))}, not {update!r}")


def resolve_update(update: str, model: Any) -> str:
    """Return how a model learns while tuning: `auto` becomes what suits it best, the others are checked.

    Raises:
        ValueError: no such way.
        TrainingError: `"context"`, and the model takes none.
    """
    from ...zoo.models import ContextModel
    from ...zoo.training.errors import TrainingError

    check_update(update)
    takes_context = isinstance(model, ContextModel)
    if update == "auto":
        return "context" if takes_context else "few-shot"
    if update == "context" and not takes_context:
        raise TrainingError(
            f"a {model.arch} takes no measured programs as context", remedy="choose few-shot or none", arch=model.arch
        )
    return update


class PretrainedScorer:
    """Scores programs of many tasks with one checkpoint, and learns from measurements.

    Args:
        checkpoint: the model, its feature schema and its device.
        update: `"none"` learns nothing; `"context"` scores the programs of a task given its measured ones, with no
            gradient step (TileNet); `"few-shot"` fine-tunes the weights on what is measured (other networks);
            `"auto"` is what suits the model.
        settings: of the fine-tuning.

    Attributes:
        unread: programs so far that no features could be made of.
        untrusted: tasks for which the checkpoint's scores do not hold (`CheckpointConfig.trust`); their measured
            programs alone rank the others (see `measured_scores`), and before some are, all score the same.
    """

    def __init__(self, checkpoint: Checkpoint, update: str = "auto", settings: OnlineSettings | None = None) -> None:
        from ...zoo.models.context import MAX_CONTEXT

        self.update = resolve_update(update, checkpoint.model)
        most = None if self.update == "few-shot" else MAX_CONTEXT  # only fine-tuning looks at older programs
        self.learner = OnlineLearner(checkpoint, settings or OnlineSettings(), most)
        self.unread = 0
        self.untrusted: set[str] = set()
        self._squash: dict[str, Squash] = {}
        self._informed: dict[str, TaskPosterior] = {}

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint as it is now, fine-tuned or not."""
        return self.learner.checkpoint

    def predict(self, task: str, features: np.ndarray, usable: np.ndarray | None = None) -> np.ndarray:
        """Scores of programs of one task.

        Args:
            task: its name.
            features: (n, rows, width), what the checkpoint reads.
            usable: (N,) bool, which n of the N programs have features; None: all.

        Returns:
            (N,) of float64 in [0, 1), higher is faster, comparable within one task; 0, the worst, without features.

        Raises:
            TuningError: the model gave a number that is not finite.
        """
        usable = np.ones(len(features), dtype=bool) if usable is None else usable
        self.unread += int((~usable).sum())
        scores = np.zeros(len(usable), dtype=np.float64)
        if len(features):
            scores[usable] = self._squash.setdefault(task, Squash())(self._raw(task, features))
        return scores

    def _raw(self, task: str, features: np.ndarray) -> np.ndarray:
        from ...zoo.models.context import TaskPosterior, measured_scores

        model: Any = self.checkpoint.model
        with one_thread():
            if task in self.untrusted:
                raw = measured_scores(features, *self.learner.measured("" if self.update == "none" else task))
            elif self.update == "context":
                if task not in self._informed:
                    self._informed[task] = TaskPosterior(model, *self.learner.measured(task))
                raw = self._informed[task].score(features)
            else:
                raw = model.score(features)
        if raw.shape != (len(features),) or not np.isfinite(raw).all():
            raise TuningError(
                f"{self.checkpoint.config.name} gave scores that are not finite numbers",
                remedy="verify the checkpoint's files with: tchub pull --verify",
                checkpoint=self.checkpoint.config.name,
            )
        return raw

    def observe(self, task: str, features: np.ndarray, latencies: Sequence[float]) -> None:
        """Take measured programs (n, rows, width) and their latencies in seconds, and learn if asked to.

        NaN or infinite: the program failed, which teaches nothing.
        """
        self.learner.add(task, features, latencies)
        if self.update == "context" or task in self.untrusted:
            self._squash.pop(task, None)
            self._informed.pop(task, None)
        if self.update == "few-shot":
            with one_thread():
                changed = self.learner.step()
            if changed:
                self._squash.clear()


# Learning while tuning -----------------------------------------------------------------------------------


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
