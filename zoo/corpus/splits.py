"""Training, validation and test tasks: the held-out networks never meet the training."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from ..apportion import apportion_capped
from .corpus import Corpus
from .schema import Task
from .workloads import HELD_OUT_NETWORKS

# The test networks of the papers (TLP 6.1, TCL 7.1.1).
HELD_OUT: tuple[str, ...] = tuple(spec.name for spec in HELD_OUT_NETWORKS)


@dataclass(frozen=True)
class Split:
    """Task ids of the three parts, each sorted, no id in two of them."""

    train: tuple[str, ...]
    val: tuple[str, ...]
    test: tuple[str, ...]

    def part(self, name: str) -> tuple[str, ...]:
        """The part called `train`, `val` or `test`."""
        return {"train": self.train, "val": self.val, "test": self.test}[name]


def is_held_out(task: Task) -> bool:
    """Whether any held-out network has this task (its id stands for the computation, not for the name)."""
    return task.weight(HELD_OUT) > 0


def metric_weight(task: Task) -> int:
    """The task's weight in a metric (TLP 6.1): its occurrences in the held-out networks.

    A task of no held-out network, which only validation sees, counts its occurrences in all networks; a
    single operator counts once.
    """
    return task.weight(HELD_OUT) or max(1, task.weight())


def split_tasks(corpus: Corpus, seed: int = 0, val_share: float = 0.1) -> Split:
    """Split the tasks of a corpus.

    Test are all tasks of the held-out networks, also those that another network has too. The rest is divided
    by task, `val_share` of every operator type (largest remainders) going to validation. The order within a
    type is that of a seeded hash of the id, so a growing corpus moves few tasks.
    """
    rest = [task for task in corpus.tasks.values() if not is_held_out(task)]
    val = _pick_validation(rest, seed, val_share)
    return Split(
        train=tuple(sorted(task.task_id for task in rest if task.task_id not in val)),
        val=tuple(sorted(val)),
        test=tuple(sorted(task.task_id for task in corpus.tasks.values() if is_held_out(task))),
    )


def _pick_validation(tasks: Iterable[Task], seed: int, share: float) -> set[str]:
    by_op: dict[str, list[str]] = {}
    for task in tasks:
        by_op.setdefault(task.op, []).append(task.task_id)
    if not by_op:
        return set()
    counts = {op: len(ids) for op, ids in by_op.items()}
    total = round(share * sum(counts.values()))
    # A type keeps at least one task in training: nothing is learnt about it otherwise.
    shares = apportion_capped(total, counts, {op: count - 1 for op, count in counts.items()})
    return {
        task_id
        for op, ids in by_op.items()
        for task_id in sorted(ids, key=lambda task_id: _order(seed, task_id))[: shares[op]]
    }


def _order(seed: int, task_id: str) -> str:
    return hashlib.sha256(f"{seed}:{task_id}".encode()).hexdigest()
