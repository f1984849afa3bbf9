"""Training, validation and test tasks: by the corpus's own protocol, by held-out networks, or by computation."""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from ..apportion import apportion
from .computation import normal
from .corpus import Corpus
from .schema import CorpusError, Task
from .workloads import HELD_OUT_NETWORKS

# The test networks of the papers (TLP 6.1, TCL 7.1.1).
HELD_OUT: tuple[str, ...] = tuple(spec.name for spec in HELD_OUT_NETWORKS)
PARTS = ("train", "val", "test")
# Test tasks of a corpus without a protocol and without a held-out network; validation tasks where none are named.
TEST_SHARE, VAL_SHARE = 0.2, 0.1


class Split(NamedTuple):
    """Task ids of the three parts, each sorted, no id in two of them."""

    train: tuple[str, ...]
    val: tuple[str, ...]
    test: tuple[str, ...]

    def part(self, name: str) -> tuple[str, ...]:
        """Return the part called `train`, `val` or `test`."""
        return getattr(self, name)


def is_held_out(task: Task) -> bool:
    """Return whether any held-out network has this task (its id stands for the computation, not for the name)."""
    return task.weight(HELD_OUT) > 0


def metric_weight(task: Task) -> int:
    """Return the task's weight in a metric (TLP 6.1): its occurrences in the held-out networks.

    One of none of these, which only validation sees, counts its occurrences in all networks; a single operator once.
    """
    return task.weight(HELD_OUT) or max(1, task.weight())


def split_tasks(corpus: Corpus) -> Split:
    """Split the tasks of a corpus by the first of three rules that applies.

    1. A protocol: `split` in `corpus.json`, `{"train": [...], "val": [...], "test": [...]}` of task ids. Tasks
       in none of its parts take no part; without `val`, a tenth of its training tasks are validation.
    2. Test are all tasks of the held-out networks, also those that another network has too; of the rest,
       a tenth is validation.
    3. Test is a fifth of the tasks, validation a tenth.

    Shares are taken of every operator type (largest remainders) in the order of a hash, so a growing
    corpus moves few tasks. Under 1 and 3, tasks of one computation stay together.

    Raises:
        CorpusError: the protocol names a task that the corpus lacks, or one twice.
    """
    if protocol := corpus.meta.get("split"):
        return _by_protocol(corpus, protocol)
    test = [task for task in corpus.tasks.values() if is_held_out(task)]
    by_network = bool(test)
    test = test or pick(corpus.tasks.values(), TEST_SHARE)
    rest = _without(corpus.tasks.values(), test)
    val = pick(rest, VAL_SHARE if by_network else VAL_SHARE / (1 - TEST_SHARE), together=not by_network)
    return Split(_ids(_without(rest, val)), _ids(val), _ids(test))


def pick(tasks: Iterable[Task], share: float, together: bool = True) -> list[Task]:
    """Return a share of the tasks of every operator type, by a hash.

    Args:
        together: tasks of one computation are taken together or not at all; a task file may name them of several
            types, of which they count for the first.
    """
    groups: dict[str, list[Task]] = {}
    for task in tasks:
        groups.setdefault(normal((together and task.computation) or task.task_id), []).append(task)
    by_op: dict[str, list[tuple[str, list[Task]]]] = {}
    for group in groups.values():
        name = (together and group[0].computation) or group[0].task_id
        by_op.setdefault(group[0].op, []).append((hashlib.sha256(f"0:{name}".encode()).hexdigest(), group))
    counts = {op: len(groups) for op, groups in by_op.items()}
    # A type keeps at least one task in training: nothing is learnt about it otherwise.
    caps = {op: count - 1 for op, count in counts.items()}
    shares = apportion(round(share * sum(counts.values())), counts, caps)
    chosen = [group for op, groups in by_op.items() for group in sorted(groups, key=itemgetter(0))[: shares[op]]]
    return [task for _, group in chosen for task in group]


def _by_protocol(corpus: Corpus, protocol: Mapping[str, list[str]]) -> Split:
    parts = [protocol.get(part) or () for part in PARTS]
    counts = Counter(task_id for part in parts for task_id in part)
    if wrong := sorted(name for name, count in counts.items() if count > 1 or name not in corpus.tasks):
        raise CorpusError(
            f"the split of {corpus.path} names {len(wrong)} tasks twice or that are not there, e.g. {wrong[0]}",
            remedy="correct `split` in corpus.json, or import the corpus again with its split file",
            tasks=wrong,
        )
    train, val, test = ([corpus.tasks[task_id] for task_id in part] for part in parts)
    val = val or pick(train, VAL_SHARE)
    return Split(_ids(_without(train, val)), _ids(val), _ids(test))


def _without(tasks: Iterable[Task], others: Iterable[Task]) -> list[Task]:
    gone = {task.task_id for task in others}
    return [task for task in tasks if task.task_id not in gone]


def _ids(tasks: Iterable[Task]) -> tuple[str, ...]:
    return tuple(sorted(task.task_id for task in tasks))


@dataclass(frozen=True)
class Leak:
    """A computation that one corpus tests on, and that is in `part` (`train` or `val`) of another, with its tasks."""

    computation: str
    tested_by: str
    trained_by: str
    part: str
    tasks: list[str]


def computations(corpus: Corpus) -> dict[str, str]:
    """Return the computation of every task by its id, as it is compared; one that cannot be known is the task's own."""
    return {t: normal(task.computation or f"task-{t}") for t, task in corpus.tasks.items()}


def computed(corpus: Corpus, part: str) -> dict[str, list[str]]:
    """Return what the tasks in one part of a corpus's split compute, and which tasks compute it."""
    known, tasks = computations(corpus), dict[str, list[str]]()
    for task_id in split_tasks(corpus).part(part):
        tasks.setdefault(known[task_id], []).append(task_id)
    return tasks


def held_out_computations(corpora: Iterable[Corpus]) -> set[str]:
    """Return every computation that is a test task of any of the corpora."""
    return {name for corpus in corpora for name in computed(corpus, "test")}


def free_tasks(corpus: Corpus, held: Collection[str], *parts: str) -> list[str]:
    """Return the ids, sorted, of the tasks in some parts of a corpus that compute nothing of what is held out."""
    return sorted(
        t for part in parts for name, tasks in computed(corpus, part).items() if name not in held for t in tasks
    )


def exclude_computations(corpus: Corpus, split: Split, held_out: Collection[str]) -> Split:
    """Return the split without the training and validation tasks that compute something held out; test stays."""
    known = computations(corpus)
    train, val = (tuple(t for t in part if known[t] not in held_out) for part in (split.train, split.val))
    return Split(train, val, split.test)


def check_leaks(corpora: Sequence[Corpus], allowed: Collection[Path | str] = ()) -> list[Leak]:
    """Find test computations of a corpus in the training or validation set of another.

    Args:
        corpora: of any frameworks and devices.
        allowed: folders of corpora that a protocol lets train on the others' test computations, e.g. a source
            device whose programs of the test tasks may be known when another device is predicted.
    """
    exempt = {Path(folder).resolve() for folder in allowed}
    parts = [{part: computed(corpus, part) for part in PARTS} for corpus in corpora]
    return [
        Leak(name, str(tester.path), str(trainer.path), part, trained[part][name])
        for trainer, trained in zip(corpora, parts, strict=True)
        if trainer.path.resolve() not in exempt
        for part in ("train", "val")
        for tester, tested in zip(corpora, parts, strict=True)
        if tester is not trainer
        for name in sorted(trained[part].keys() & tested["test"].keys())
    ]
