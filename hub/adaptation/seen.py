"""Programs that were learnt before, and programs that nothing may learn: no hold-out is judged by what taught a model.

A program of a device is known by what its task computes and by its key, which every journal and corpus share.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from .pool import CandidatePool
from .tools import Base

if TYPE_CHECKING:
    from ...zoo.corpus import Corpus
    from ...zoo.models import CheckpointConfig
    from ..networks.tasks import TuningTask

# Of a checkpoint's `training`: the marks of the programs that it has learnt by adapting.
LEARNT = "learnt_programs"
# Digits of a mark: of 10,000 programs, one is held for another with a probability of 4 in 100 billion.
_DIGITS = 12


def program_mark(device: str, computation: str, key: str) -> str:
    """12 hex digits that stand for a program measured on a device."""
    return hashlib.sha256("\n".join((device, computation, key)).encode()).hexdigest()[:_DIGITS]


def learnt_marks(config: CheckpointConfig) -> frozenset[str]:
    """Programs that a checkpoint, or one that it was adapted from, has learnt while being adapted."""
    told = config.training.get(LEARNT)
    return frozenset(map(str, told)) if isinstance(told, list) else frozenset()


def corpus_marks(corpus: Corpus) -> frozenset[str]:
    """Every program of a corpus."""
    device = str(corpus.meta["device"])
    return frozenset(
        program_mark(device, task.computation or name, str(key))
        for name, task in corpus.tasks.items()
        for key in corpus.table(name, ["key"])["key"].to_pylist()
    )


@dataclass(frozen=True)
class PoolPrograms:
    """The programs of a pool as other runs and corpora know them.

    Attributes:
        pool: the candidates; device: that measures them.
        computation: of a task.
    """

    pool: CandidatePool
    device: str
    computation: Callable[[TuningTask], str]

    @cached_property
    def computations(self) -> tuple[str, ...]:
        """What each task of the pool computes."""
        return tuple(self.computation(task) or task.task_id for task in self.pool.tasks)

    def marks(self, indices: Iterable[int]) -> frozenset[str]:
        """Of some places of the pool."""
        return frozenset(self._mark(int(index)) for index in indices)

    def learnt_by(self, bases: Sequence[Base]) -> np.ndarray:
        """(k,) int64 places of the pool whose latency some checkpoint has learnt."""
        learnt = frozenset[str]().union(*(learnt_marks(base.checkpoint.config) for base in bases))
        if not learnt:
            return np.empty(0, np.int64)
        return np.array([place for place in range(len(self.pool)) if self._mark(place) in learnt], dtype=np.int64)

    def keys_in(self, corpus: Corpus, indices: Iterable[int]) -> frozenset[tuple[str, str]]:
        """(task, key) that some places of the pool have in a corpus, by its tasks' names or what they compute."""
        keys: dict[str, set[str]] = {}
        for index in indices:
            entry = self.pool.entries[int(index)]
            for name in (self.pool.tasks[entry.task].task_id, self.computations[entry.task]):
                keys.setdefault(name, set()).add(entry.key)
        return frozenset(
            (task_id, key)
            for task_id, task in corpus.tasks.items()
            for key in keys.get(task_id, set()) | keys.get(task.computation or task_id, set())
        )

    def withheld(self, corpus: Corpus, held: Iterable[int], learnt: Iterable[int]) -> frozenset[tuple[str, str]]:
        """(task, key) of a corpus that are not learnt from it: what judges, and labels that are learnt here anyway.

        Cross-validation judges by those: a start that knew them of a corpus of this device would win by memory.

        Args:
            corpus: of any device.
            held: places of the pool that judge; learnt: those to learn from.
        """
        here = str(corpus.meta["device"]) == self.device
        return self.keys_in(corpus, [*held, *(learnt if here else ())])

    def _mark(self, index: int) -> str:
        entry = self.pool.entries[index]
        return program_mark(self.device, self.computations[entry.task], entry.key)
