"""Question about a checkpoint's data: can what it says it learnt be had without a test task?

A config tells of every corpus how many tasks and programs were learnt. Training keeps a task out when a test task of
any of its corpora computes the same, whatever the framework and the device (or, with one corpus, when it is a test
task there), so what is left of a corpus bounds both numbers: a checkpoint that says more has learnt what it is judged
by. That corpora have tasks in common is no leak by itself. What the checkpoint that it started from had learnt counts
too, and that one knew nothing of the corpus that judges now.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...cards import CardData
from ..registry import Registry
from ..registry.entry import as_object
from ..registry.files import CONFIG_FILE, read_json
from .check_metrics import published
from .findings import Finding, failed, not_checked, passed
from .subject import Subject

if TYPE_CHECKING:
    from ...cards import CorpusFacts
    from ...zoo.corpus import Corpus

_RETRAIN = "train it again with `tchub train`, which keeps every test task out"
_OTHER_START = "start from random weights, or from a checkpoint that did not learn these tasks"


@dataclass(frozen=True)
class Learnt:
    """What one training learnt: the checkpoint's own, or that of one that it started from.

    Attributes:
        who: the start's `name@version`, empty for the checkpoint itself.
        corpora: learnt from; None where the start is not on this machine.
    """

    who: str
    corpora: tuple[CorpusFacts, ...] | None

    @property
    def names(self) -> list[str]:
        """Of the corpora."""
        return [str(corpus.name) for corpus in self.corpora or ()]


def check_leak(subject: Subject) -> Finding:
    """No test task was learnt, as far as its own account and the corpora tell."""
    trainings = list(_trainings(subject))
    judges = [judged.corpus for judged in published(subject.card)]
    names = [name for learnt in trainings for name in learnt.names]
    if absent := subject.missing([*judges, *names]):
        remedy = f"give {' '.join(f'--corpus DIR/{name}' for name in absent)}, or --without-evaluation"
        return not_checked("leak", f"needs the corpora that teach and judge: {', '.join(absent)}", remedy)
    if unknown := [learnt.who for learnt in trainings if learnt.corpora is None]:
        return not_checked("leak", f"what its start {unknown[0]} learnt is not known here", f"tchub pull {unknown[0]}")
    for learnt in trainings:
        if problems := _learnt_judges(subject) if subject.is_base else _too_many(subject, learnt):
            return failed("leak", "; ".join(problems), _OTHER_START if learnt.who else _RETRAIN)
    return passed("leak", f"no test task is in what was learnt of {', '.join(dict.fromkeys(names))}")


def _trainings(subject: Subject) -> Iterator[Learnt]:
    """The checkpoint's own training, then those of its starts, nearest first."""
    registry, config, seen = Registry.default(), subject.config, {""}
    yield _learnt("", config)
    while (start := str(as_object(config.get("training")).get("init") or "")) not in seen:
        seen.add(start)
        folder = next((registry.folder(entry) for entry in registry.entries() if entry.id == start), None)
        config = read_json(folder / CONFIG_FILE) if folder else {}
        yield _learnt(start, config) if config else Learnt(start, None)


def _learnt(who: str, config: Mapping[str, Any]) -> Learnt:
    corpora = CardData.from_files(config, {}).corpora
    return Learnt(who, tuple(corpus for corpus in corpora if corpus.name and corpus.programs))


def _too_many(subject: Subject, learnt: Learnt) -> list[str]:
    """Corpora of which more was learnt than is left without the test tasks."""
    judges = subject.corpora[published(subject.card)[0].corpus]
    free = _free([subject.corpora[name] for name in learnt.names], judges)
    who = f" by its start {learnt.who}" if learnt.who else ""
    problems = []
    for facts, (tasks, programs) in zip(learnt.corpora or (), free, strict=True):
        for what, said, most in (("tasks", facts.tasks, tasks), ("programs", facts.programs, programs)):
            if said is not None and said > most:
                problems.append(f"{said} {what} of {facts.name} were learnt{who}, {most} are no test")
    return problems


def _free(corpora: Sequence[Corpus], judges: Corpus) -> list[tuple[int, int]]:
    """Of each corpus the tasks, and their valid programs, that compute nothing that any corpus tests on."""
    from ...zoo.corpus import exclude_computations, held_out_computations, split_tasks, usable_programs

    held = held_out_computations([*corpora, judges])
    found = []
    for corpus in corpora:
        split = exclude_computations(corpus, split_tasks(corpus), held)
        usable = usable_programs(corpus, (*split.train, *split.val)).programs
        found.append((len(usable), sum(map(len, usable.values()))))
    return found


def _learnt_judges(subject: Subject) -> list[str]:
    """Devices of a knowledge base that are judged by more tasks than it has not learnt."""
    from ...zoo.adapt.continual.lineage import computation_key, seen_tasks
    from ...zoo.corpus import computations, split_tasks

    learnt = seen_tasks(subject.checkpoint.config).learnt
    problems = []
    for judged in published(subject.card):
        corpus = subject.corpora[judged.corpus]
        known = computations(corpus)
        left = sum(computation_key(known[task]) not in learnt for task in split_tasks(corpus).test)
        if (judged.tasks or 0) > left:
            problems.append(f"{judged.tasks} tasks of {judged.corpus} judge it, {left} of its tests are not learnt")
    return problems
