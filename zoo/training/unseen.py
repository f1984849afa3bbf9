"""Judging a checkpoint where it did not learn: which tasks of a corpus compute nothing that it was trained on."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..corpus import Corpus

ALL = "all"


@dataclass(frozen=True)
class Unseen:
    """Tasks of a corpus that a checkpoint does not know.

    Attributes:
        part: of the corpus's split: `test`, or `all` where it keeps no task for testing.
        tasks: their ids, sorted; seen: how many tasks of the part were left out, for they were learnt elsewhere.
    """

    part: str
    tasks: tuple[str, ...]
    seen: int


def learnt_computations(corpora: Sequence[Corpus]) -> set[str]:
    """What a run on these corpora learnt from, or chose its epoch by.

    It is what the training and validation tasks of all of them compute, without what any of them tests on: `gather`
    and a knowledge base's curriculum leave that out, whatever its framework and device.
    """
    from ..corpus import computations, held_out_computations, split_tasks

    learnt: set[str] = set()
    for corpus in corpora:
        known, split = computations(corpus), split_tasks(corpus)
        learnt |= {known[task] for task in (*split.train, *split.val)}
    return learnt - held_out_computations(corpora)


def unseen_tasks(corpus: Corpus, learnt: Collection[str]) -> Unseen:
    """The test tasks of a corpus, all tasks where it has none, that compute nothing of `learnt`."""
    from ..corpus import computations, split_tasks

    test = split_tasks(corpus).test
    part, tasks = ("test", test) if test else (ALL, tuple(sorted(corpus.tasks)))
    known = computations(corpus)
    free = tuple(task for task in tasks if known[task] not in learnt)
    return Unseen(part, free, len(tasks) - len(free))
