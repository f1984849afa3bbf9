"""`RankingDataset`, programs grouped by task as arrays, and the batches of an epoch over it."""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np

from .errors import TrainingError


@dataclass(frozen=True)
class RankingDataset:
    """Programs of several tasks with their measured latencies.

    Attributes:
        features: (N, rows, width) float32.
        latency: (N,) float64, seconds, positive and finite.
        group: (N,) int64, index of the program's task in `task_ids`.
        task_ids: names of the T tasks.
        task_weights: (T,) float64, occurrences of the task in the networks looked at (TLP 6.1).
        task_heads: (T,) int64, head of a model of several heads that learns the task; None: the first for all.
        bounds: (N, 2) float32, memory-bound and core-bound score of each program (see `bound_scores`), NaN where they
            are not known; None: of none.

    Raises:
        TrainingError: shapes do not fit, a latency is not positive and finite, or a feature is not finite.
    """

    features: np.ndarray
    latency: np.ndarray
    group: np.ndarray
    task_ids: tuple[str, ...]
    task_weights: np.ndarray
    task_heads: np.ndarray | None = None
    bounds: np.ndarray | None = None

    def __post_init__(self) -> None:
        fits = len(self.features) == len(self.latency) == len(self.group) and self.features.ndim == 3
        problems = {
            "features are not (N, rows, width), or group not (N,)": not fits,
            "a latency is not positive and finite": not np.all(np.isfinite(self.latency) & (self.latency > 0)),
            "a feature is not finite": not np.all(np.isfinite(self.features)),
        }
        if wrong := [problem for problem, holds in problems.items() if holds]:
            raise TrainingError(f"training data: {wrong[0]}", remedy="drop failed programs before making it")

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

    @property
    def heads(self) -> np.ndarray:
        """(N,) int64: the head of each program's task."""
        return np.zeros(len(self), np.int64) if self.task_heads is None else self.task_heads[self.group]

    @cached_property
    def members(self) -> list[np.ndarray]:
        """For each task, the indices of its programs, ascending."""
        order = np.argsort(self.group, kind="stable")
        ends = np.cumsum(np.bincount(self.group, minlength=len(self.task_ids)))
        return np.split(order, ends[:-1]) if len(self.task_ids) else []

    def take(self, index: np.ndarray) -> Self:
        """Return the programs at `index`; tasks keep their numbers, also those left without programs.

        Labels are then relative to the best program taken, as they would be had nothing else been measured.
        """
        bounds = None if self.bounds is None else self.bounds[index]
        parts = {"features": self.features[index], "latency": self.latency[index], "group": self.group[index]}
        return replace(self, **parts, bounds=bounds)

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """Return all tasks of several sets of one width, none joined with another; missing rows are zeros."""
        if len(parts) == 1:
            return parts[0]
        offsets = np.cumsum([0, *(len(part.task_ids) for part in parts)])
        heads = [np.zeros(len(p.task_ids), np.int64) if p.task_heads is None else p.task_heads for p in parts]
        bounds = [np.full((len(p), 2), np.nan, np.float32) if p.bounds is None else p.bounds for p in parts]
        return cls(
            features=stack_padded([part.features for part in parts]),
            latency=np.concatenate([part.latency for part in parts]),
            group=np.concatenate([part.group + at for part, at in zip(parts, offsets, strict=False)]),
            task_ids=tuple(name for part in parts for name in part.task_ids),
            task_weights=np.concatenate([part.task_weights for part in parts]),
            task_heads=np.concatenate(heads) if any(p.task_heads is not None for p in parts) else None,
            bounds=np.concatenate(bounds) if any(p.bounds is not None for p in parts) else None,
        )

    def fingerprint(self) -> str:
        """Return 16 digits of the sha256 of the contents, by which a resumed run knows its data."""
        digest = hashlib.sha256(repr((self.features.shape, self.task_ids)).encode())
        heads = () if self.task_heads is None else (self.task_heads,)
        for array in (self.features, self.latency, self.group, *heads):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:16]


def stack_padded(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return matrices (n, rows, width) of unequal rows in one float32 array, the missing rows being zeros."""
    if len({part.shape[1] for part in parts}) == 1:
        return np.concatenate(parts)
    whole = np.zeros((sum(map(len, parts)), max(part.shape[1] for part in parts), parts[0].shape[2]), np.float32)
    for part, at in zip(parts, np.cumsum([0, *map(len, parts)]), strict=False):
        whole[at : at + len(part), : part.shape[1]] = part
    return whole


@dataclass(frozen=True)
class Batch:
    """A few groups, padded to the longest.

    Attributes:
        index: (n,) programs, group after group: the order in which `mask` is True.
        labels: (groups, programs) float32, 0 at padding; mask: of the same shape, False at padding.
    """

    index: np.ndarray
    labels: np.ndarray
    mask: np.ndarray

    def __len__(self) -> int:
        return len(self.mask)


def epoch_batches(data: RankingDataset, groups: int, programs: int, rng: np.random.Generator) -> Iterator[Batch]:
    """Shuffle each task's programs, cut them into groups of nearly equal size, and shuffle the groups.

    Args:
        data: the programs; a task with one program has nothing to compare and is left out.
        groups: groups a batch; programs: programs a group, both at most.
    """
    cut: list[np.ndarray] = []
    for members in data.members:
        if len(members) >= 2:
            # At most half the task a group, so that no group is left with a single program.
            count = min(-(-len(members) // programs), len(members) // 2)
            cut += np.array_split(rng.permutation(members), count)
    order = rng.permutation(len(cut))
    for start in range(0, len(cut), groups):
        parts = [cut[i] for i in order[start : start + groups]]
        lengths, index = np.array([len(part) for part in parts]), np.concatenate(parts)
        mask = np.arange(lengths.max()) < lengths[:, None]
        labels = np.zeros(mask.shape, np.float32)
        labels[mask] = data.labels[index]
        yield Batch(index, labels, mask)


def steps_per_epoch(data: RankingDataset, programs: int, groups: int) -> int:
    """Return the batches of an epoch with so many programs a group and groups a batch."""
    count = sum(math.ceil(len(members) / programs) for members in data.members if len(members) > 1)
    return max(1, math.ceil(count / groups))
