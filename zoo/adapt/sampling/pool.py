"""The candidates of which a sampler picks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import SamplingError


@dataclass(frozen=True)
class Pool:
    """The candidate programs of the tasks in hand.

    Attributes:
        task: (N,) int64, the task of each program.
        ops: operator type of each task; `task` indexes it.
        task_features: (T, F) numbers that describe each task, where the caller knows some; see `fasor`.
        to_rank: whether these very tasks will be ranked, as those of a network that is to be tuned are; or they stand
            for others, as the tasks of a corpus or a suite do.
    """

    task: np.ndarray
    ops: tuple[str, ...]
    task_features: np.ndarray | None = None
    to_rank: bool = False

    def __len__(self) -> int:
        return len(self.task)

    def op(self, index: int) -> str:
        """Operator type of a program."""
        return self.ops[int(self.task[index])]

    def op_distribution(self) -> dict[str, int]:
        """Tasks (the paper's assignments) in the pool by operator type: Calc_Dist of algorithm 1."""
        return dict(Counter(self.ops[task] for task in np.unique(self.task).tolist()))

    def free(self, labeled: Sequence[int] | np.ndarray, k: int) -> np.ndarray:
        """Places of the programs without a label, ascending, (n,) int64.

        Raises:
            SamplingError: there is none, or `k` programs are not a number of programs to pick.
        """
        free = np.ones(len(self), dtype=bool)
        free[np.asarray(labeled, dtype=np.int64)] = False
        rest = np.flatnonzero(free)
        if len(rest) == 0 or k < 1:
            raise SamplingError(
                f"nothing to pick: {len(rest)} of {len(self)} candidates are unmeasured, {k} wanted",
                remedy="enlarge the pool (--pool) or give a budget of at least one program",
            )
        return rest

    def counts(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        """(T,) int64: how many of the programs at `indices` each task has."""
        return np.bincount(self.task[np.asarray(indices, dtype=np.int64)], minlength=len(self.ops))
