"""Question about a checkpoint's data: can what it says it learnt be had without a test task?

A config tells of every corpus how many tasks and programs were learnt. Training keeps a task out when a test task of
any of its corpora computes the same, whatever the framework and the device (or, with one corpus, when it is a test
task there), so what is left of a corpus bounds both numbers: a checkpoint that says more has learnt what it is judged
by. That the corpora have tasks in common is no leak by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .findings import Finding, failed, not_checked, passed
from .subject import Subject

if TYPE_CHECKING:
    from ...cards import Corpus as CorpusFacts
    from ...zoo.corpus import Corpus

_RETRAIN = "train it again with `tchub train`, which keeps every test task out"


def check_leak(subject: Subject) -> Finding:
    """No test task was learnt, as far as its own account and the corpora tell."""
    learnt = [corpus for corpus in subject.card.corpora if corpus.name and corpus.programs]
    names = [str(corpus.name) for corpus in learnt]
    if absent := subject.missing(names):
        remedy = f"give {' '.join(f'--corpus DIR/{name}' for name in absent)}, or --without-evaluation"
        return not_checked("leak", f"needs the corpora that it learnt: {', '.join(absent)}", remedy)
    corpora = [subject.corpora[name] for name in names]
    problems = _learnt_judges(subject) if subject.is_base else _too_many(learnt, corpora)
    if problems:
        return failed("leak", "; ".join(problems), _RETRAIN)
    return passed("leak", f"no test task is in what it learnt of {', '.join(names)}")


def _too_many(told: Sequence[CorpusFacts], corpora: Sequence[Corpus]) -> list[str]:
    """Corpora of which more was learnt than is left without the test tasks."""
    problems = []
    for facts, (tasks, programs) in zip(told, _free(corpora), strict=True):
        for what, said, most in (("tasks", facts.tasks, tasks), ("programs", facts.programs, programs)):
            if said is not None and said > most:
                problems.append(f"{said} {what} of {facts.name} were learnt, {most} are no test")
    return problems


def _free(corpora: Sequence[Corpus]) -> list[tuple[int, int]]:
    """Of each corpus the tasks, and their valid programs, that compute nothing that any corpus tests on."""
    from ...zoo.corpus import exclude_computations, held_out_computations, split_tasks, usable_programs

    held = held_out_computations(corpora)
    found = []
    for corpus in corpora:
        split = exclude_computations(corpus, split_tasks(corpus), held)
        usable = usable_programs(corpus, (*split.train, *split.val)).programs
        found.append((len(usable), sum(map(len, usable.values()))))
    return found


def _learnt_judges(subject: Subject) -> list[str]:
    """Devices of a knowledge base that are judged by more tasks than it has not learnt."""
    from ...zoo.adapt.knowledge_base.facts import computation_key, seen_tasks
    from ...zoo.corpus import computations, split_tasks

    learnt = seen_tasks(subject.checkpoint.config).learnt
    problems = []
    for row in subject.metrics.get("devices") or ():
        corpus = subject.corpora[row["corpus"]]
        known = computations(corpus)
        left = sum(computation_key(known[task]) not in learnt for task in split_tasks(corpus).test)
        if row.get("tasks", 0) > left:
            problems.append(
                f"{row['tasks']} tasks of {row['corpus']} judge it, {left} of its test tasks are not learnt"
            )
    return problems
