"""One split over many corpora: what any corpus tests on, no corpus may train on, whatever its framework or device."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .computation import normal
from .corpus import Corpus
from .splits import Split, split_tasks
from .tir import computation_of_text


@dataclass(frozen=True)
class Leak:
    """A computation that one corpus tests on and another trains (or validates) on.

    Attributes:
        computation: what is computed, see `computation`.
        tested_by, trained_by: the corpora's folders.
        part: `train` or `val`, of the corpus that trains on it.
        tasks: the tasks of that corpus.
    """

    computation: str
    tested_by: str
    trained_by: str
    part: str
    tasks: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self) | {"tasks": list(self.tasks)}


def computations(corpus: Corpus) -> dict[str, str]:
    """Task id -> computation of every task, in the spelling by which they are compared (`computation.normal`).

    A MetaSchedule corpus of format 1 does not tell them: they are read from its modules, which needs TVM and
    10 ms a task. A task whose computation cannot be known is its own.
    """
    if corpus.meta.get("format") == 1:
        told = {t: task.computation or computation_of_text(task.workload) for t, task in corpus.tasks.items()}
    else:
        told = {t: task.computation or f"task-{t}" for t, task in corpus.tasks.items()}
    return {task_id: normal(text) for task_id, text in told.items()}


def held_out_computations(corpora: Iterable[Corpus], seed: int = 0) -> set[str]:
    """Every computation that is a test task of any of the corpora."""
    found: set[str] = set()
    for corpus in corpora:
        known = computations(corpus)
        found |= {known[task_id] for task_id in split_tasks(corpus, seed).test}
    return found


def exclude_computations(corpus: Corpus, split: Split, held_out: Collection[str]) -> Split:
    """The split without the training and validation tasks that compute something held out; test stays."""
    known = computations(corpus)
    train, val = (tuple(t for t in part if known[t] not in held_out) for part in (split.train, split.val))
    return Split(train, val, split.test)


def training_tasks(corpus: Corpus, held_out: Collection[str], seed: int = 0) -> tuple[str, ...]:
    """The training tasks of a corpus that compute nothing held out by any other (see `held_out_computations`)."""
    return exclude_computations(corpus, split_tasks(corpus, seed), held_out).train


def check_leaks(corpora: Sequence[Corpus], seed: int = 0, allowed: Collection[Path | str] = ()) -> list[Leak]:
    """Find test computations of a corpus in the training or validation set of another.

    Args:
        corpora: of any frameworks and devices.
        seed: of the splits.
        allowed: folders of corpora that a protocol lets train on the others' test computations, e.g. a source
            device whose programs of the test tasks may be known when another device is predicted.
    """
    exempt = {Path(folder).resolve() for folder in allowed}
    splits = [split_tasks(corpus, seed) for corpus in corpora]
    known = [computations(corpus) for corpus in corpora]
    tests = [{names[task_id] for task_id in split.test} for split, names in zip(splits, known, strict=True)]
    return [
        leak
        for corpus, split, names in zip(corpora, splits, known, strict=True)
        if corpus.path.resolve() not in exempt
        for part in ("train", "val")
        for tester, held_out in zip(corpora, tests, strict=True)
        if tester is not corpus
        for leak in _leaks(split.part(part), part, names, (tester, corpus), held_out)
    ]


def _leaks(
    task_ids: Iterable[str], part: str, names: dict[str, str], pair: tuple[Corpus, Corpus], held_out: set[str]
) -> list[Leak]:
    tasks: dict[str, list[str]] = {}
    for task_id in task_ids:
        if names[task_id] in held_out:
            tasks.setdefault(names[task_id], []).append(task_id)
    tester, trainer = pair
    return [Leak(name, str(tester.path), str(trainer.path), part, tuple(ids)) for name, ids in sorted(tasks.items())]
