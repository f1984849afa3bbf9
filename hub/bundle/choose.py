"""Which candidates of each task a bundle holds: random ones, ranked by a checkpoint, or evolved from measured ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...zoo.corpus.canonical import canonical_task, renamed_program
from ..device.candidate import Candidate
from ..search.candidates import evolved_candidates, random_candidates, tune_context
from ..search.errors import NoCandidateError

if TYPE_CHECKING:
    from ...zoo.corpus import Corpus
    from ..networks.tasks import TuningTask

# A checkpoint chooses among so many times the programs that it may take.
_CHOICE = 4


def choose_candidates(
    tasks: Sequence[TuningTask],
    shares: Mapping[str, int],
    target: Any,
    seed: int,
    checkpoint: str | None,
    corpus: Corpus | None,
    say: Callable[[str], None],
) -> Iterator[Candidate]:
    """Candidates of every task, its share of them at most.

    Args:
        shares: programs by task id.
        checkpoint: half of each share are the best it knows of; its name or folder.
        corpus: programs measured before; for a task that it has, all candidates are evolved from its programs.
    """
    model = _model(checkpoint) if checkpoint else None
    for task in tasks:
        count = shares[task.task_id]
        if count == 0:
            continue
        try:
            measured, known = _measured(corpus, task.task_id)
            if measured:
                yield from evolved_candidates(task, target, count, measured, seed, known)
            elif model is None:
                yield from random_candidates(task, target, count, seed, known)
            else:
                many = random_candidates(task, target, _CHOICE * count, seed, known)
                yield from _ranked(model, task, target, many, count)
        except NoCandidateError as error:
            say(f"{error.message}: left out")


def _measured(corpus: Corpus | None, task_id: str) -> tuple[list[tuple[str, float]], list[str]]:
    """Trace and latency of a task's valid programs, and the keys of all, by the names that tasks to be tuned have."""
    if corpus is None or task_id not in corpus.tasks:
        return [], []
    _, new_names = canonical_task(corpus.tasks[task_id])
    programs = [renamed_program(program, new_names) for program in corpus.programs(task_id)]
    return [(p.trace, p.latency) for p in programs if p.valid], [p.key for p in programs]


def _model(checkpoint: str) -> Any:
    from ..search.models import choose_model

    return choose_model(checkpoint, update="none").make()


def _ranked(model: Any, task: TuningTask, target: Any, many: list[Candidate], count: int) -> list[Candidate]:
    """The first half of `count` by the model's ranking, the rest as they came, so that slow programs are there too."""
    context = tune_context(task, target, "replay-trace", 0)
    scores = np.asarray(model.predict(context, [_measure_candidate(task, candidate) for candidate in many]))
    best = [many[index] for index in np.argsort(-scores, kind="stable")[: (count + 1) // 2]]
    taken = {candidate.key for candidate in best}
    return [*best, *(candidate for candidate in many if candidate.key not in taken)][:count]


def _measure_candidate(task: TuningTask, candidate: Candidate) -> Any:
    from tvm.s_tir import Schedule
    from tvm.s_tir import meta_schedule as ms
    from tvm.s_tir.schedule import Trace

    schedule: Any = Schedule(task.mod)
    Trace.apply_json_to_schedule(json.loads(candidate.trace), schedule)
    return ms.MeasureCandidate(schedule, ms.arg_info.ArgInfo.from_entry_func(schedule.mod, remove_preproc=True))
