"""An epoch's batches: every program once, in groups of one task, several groups a batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .dataset import RankingDataset


@dataclass(frozen=True)
class Batch:
    """A few groups, padded to the longest.

    Attributes:
        index: (n,) programs, group after group: the order in which `mask` is True.
        labels: (groups, programs) float32, 0 at padding.
        mask: (groups, programs) bool, False at padding.
    """

    index: np.ndarray
    labels: np.ndarray
    mask: np.ndarray

    def __len__(self) -> int:
        return len(self.mask)


def epoch_batches(data: RankingDataset, groups: int, programs: int, rng: np.random.Generator) -> Iterator[Batch]:
    """Shuffles each task's programs, cuts them into groups of nearly equal size, and shuffles the groups.

    Args:
        data: the programs; a task with one program has nothing to compare and is left out.
        groups: groups a batch, at most.
        programs: programs a group, at most.
        rng: decides everything.
    """
    cut: list[np.ndarray] = []
    for members in data.members:
        if len(members) >= 2:
            # At most half the task a group, so that no group is left with a single program.
            count = min(-(-len(members) // programs), len(members) // 2)
            cut += np.array_split(rng.permutation(members), count)
    order = rng.permutation(len(cut))
    for start in range(0, len(cut), groups):
        yield _pad(data, [cut[i] for i in order[start : start + groups]])


def _pad(data: RankingDataset, parts: list[np.ndarray]) -> Batch:
    lengths = np.array([len(p) for p in parts])
    mask = np.arange(lengths.max()) < lengths[:, None]
    index = np.concatenate(parts)
    labels = np.zeros(mask.shape, np.float32)
    labels[mask] = data.labels[index]
    return Batch(index, labels, mask)
