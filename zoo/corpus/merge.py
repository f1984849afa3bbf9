"""Growing a corpus: new programs of the same device, nothing lost and nothing twice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from .corpus import Corpus
from .errors import CorpusMismatchError
from .schema import META_FILE, Program, Task
from .writer import write_corpus

# What must agree before programs may share a corpus.
IDENTITY = ("device", "family", "cpu_model", "target")


def merge_corpus(
    path: Path | str, meta: Mapping[str, Any], tasks: Iterable[Task], programs: Iterable[Program]
) -> Corpus:
    """Add tasks and programs to a corpus, or create it; adding the same ones twice changes nothing.

    A program that is there already stays as it is, unless it had failed and the new one did not. A task that
    is there already gains the networks that it lacked. The new programs are held in memory, the old ones not.

    Raises:
        CorpusMismatchError: the programs are of another device, CPU model or target.
    """
    folder = Path(path)
    if not (folder / META_FILE).exists():
        return write_corpus(folder, meta, tasks, programs)
    old = Corpus.open(folder)
    _check_same_device(old.meta, meta, folder)
    merged_tasks = dict(old.tasks)
    for task in tasks:
        merged_tasks[task.task_id] = _merge_task(merged_tasks.get(task.task_id), task)
    kept = {k: v for k, v in old.meta.items() if k not in meta} | {"created": old.meta["created"]}
    return write_corpus(folder, {**meta, **kept}, merged_tasks.values(), _merged(old, programs))


def _merged(old: Corpus, programs: Iterable[Program]) -> Iterator[Program]:
    new: dict[tuple[str, str], Program] = {}
    for program in programs:
        known = new.setdefault((program.task_id, program.key), program)
        if not known.valid and program.valid:
            new[program.task_id, program.key] = program
    for program in old.iter_programs():
        better = new.pop((program.task_id, program.key), program)
        yield better if not program.valid and better.valid else program
    yield from new.values()


def _merge_task(old: Task | None, new: Task) -> Task:
    if old is None:
        return new
    counts = dict(old.networks) | dict(new.networks)
    return replace(old, networks=tuple(sorted(counts.items())), computation=old.computation or new.computation)


def _check_same_device(old: Mapping[str, Any], new: Mapping[str, Any], folder: Path) -> None:
    for name in IDENTITY:
        if name in new and old.get(name) != new[name]:
            raise CorpusMismatchError(
                f"the corpus {folder} is of {name} {old.get(name)!r}, the new programs of {new[name]!r}",
                remedy="write them to a folder of their own: latencies of two devices do not mix",
                field=name,
                path=str(folder),
            )
