"""`RankingDataset`: programs grouped by task, as arrays that fit together."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from .errors import DatasetError


@dataclass(frozen=True)
class RankingDataset:
    """Programs of several tasks with their measured latencies.

    Attributes:
        features: (N, rows, width) float32.
        latency: (N,) float64, seconds, positive and finite.
        group: (N,) int64, index of the program's task in `task_ids`.
        task_ids: names of the T tasks.
        task_weights: (T,) float64, occurrences of the task in the networks looked at (TLP 6.1).

    Raises:
        DatasetError: shapes do not fit, a latency is not a latency, or a group has no task.
    """

    features: np.ndarray
    latency: np.ndarray
    group: np.ndarray
    task_ids: tuple[str, ...]
    task_weights: np.ndarray

    def __post_init__(self) -> None:
        n, tasks = len(self.latency), len(self.task_ids)
        problems = {
            "features are not (N, rows, width)": self.features.ndim != 3 or len(self.features) != n,
            "group is not (N,)": self.group.shape != (n,),
            "task_weights is not (T,)": self.task_weights.shape != (tasks,),
            "a latency is not positive and finite": not np.all(np.isfinite(self.latency) & (self.latency > 0)),
            "a feature is not finite": not np.all(np.isfinite(self.features)),
            "a group has no task": n > 0 and not (self.group.min() >= 0 and self.group.max() < tasks),
        }
        for what, wrong in problems.items():
            if wrong:
                raise DatasetError(f"training data: {what}", remedy="drop failed programs before making it", what=what)

    def __len__(self) -> int:
        return len(self.latency)

    @cached_property
    def best(self) -> np.ndarray:
        """(T,) float64: smallest latency of each task; infinite for a task without programs."""
        best = np.full(len(self.task_ids), np.inf)
        np.minimum.at(best, self.group, self.latency)
        return best

    @cached_property
    def labels(self) -> np.ndarray:
        """(N,) float64 in (0, 1]: smallest latency of the task / latency (TLP 4.4)."""
        return self.best[self.group] / self.latency

    @cached_property
    def members(self) -> list[np.ndarray]:
        """For each task, the indices of its programs, ascending."""
        order = np.argsort(self.group, kind="stable")
        ends = np.cumsum(np.bincount(self.group, minlength=len(self.task_ids)))
        return np.split(order, ends[:-1]) if len(self.task_ids) else []

    def take(self, index: np.ndarray) -> RankingDataset:
        """The programs at `index`; tasks keep their numbers, also those left without programs.

        Labels are then relative to the best program taken, as they would be had nothing else been measured.
        """
        return replace(self, features=self.features[index], latency=self.latency[index], group=self.group[index])

    def sample(self, tasks_fraction: float = 1.0, programs_fraction: float = 1.0, seed: int = 0) -> RankingDataset:
        """A random part: some tasks, and of every task kept some programs (at least two, if it has them)."""
        rng = np.random.default_rng(seed)
        filled = [m for m in self.members if len(m)]
        count = max(1, round(tasks_fraction * len(filled)))
        chosen = [filled[i] for i in np.sort(rng.permutation(len(filled))[:count])]
        kept = [rng.permutation(m)[: max(min(2, len(m)), round(programs_fraction * len(m)))] for m in chosen]
        return self.take(np.sort(np.concatenate(kept)) if kept else np.empty(0, dtype=np.int64))

    def fingerprint(self) -> str:
        """sha256 hex of the contents, 16 digits: tells whether a resumed run sees the same data."""
        digest = hashlib.sha256(repr((self.features.shape, self.task_ids)).encode())
        for array in (self.features, self.latency, self.group):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:16]
