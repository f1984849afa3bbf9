"""Growing a corpus: new programs of the same device, nothing lost and nothing twice."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .canonical import renamed_program, with_equal_names
from .corpus import Corpus
from .schema import META_FILE, CorpusMismatchError, Program, Task
from .splits import computations
from .writer import CorpusWriter, write_corpus

# What must agree before programs may share a corpus.
IDENTITY = ("device", "family", "cpu_model", "target")
# What must agree besides before whole corpora become one, since one line tells it for all of their programs.
CORPUS_IDENTITY = (*IDENTITY, "tvm_version", "framework", "licence")
# The writer's own, or told otherwise than by "all say the same".
_OWN = ("files", "format", "tasks", "programs", "created", "command", "commands", "source", "split", "device_sheet")
_MERGE_COMMAND = "tchub corpus merge DIR... --out DIR"


def merge_corpus(
    path: Path | str, meta: Mapping[str, Any], tasks: Iterable[Task], programs: Iterable[Program]
) -> Corpus:
    """Add tasks and programs to a corpus, or create it; adding the same ones twice changes nothing.

    A program that is there already stays as it is, unless it had failed and the new one did not. A task that
    is there already gains the networks that it lacked; where its blocks have other names, it and all its programs get
    canonical ones. The new programs are held in memory, the old ones not.

    Raises:
        CorpusMismatchError: the programs are of another device, CPU model or target.
    """
    folder = Path(path)
    if not (folder / META_FILE).exists():
        return write_corpus(folder, meta, tasks, programs)
    old = Corpus.open(folder)
    _check_same_device(old.meta, meta, folder)
    merged_tasks = _told(old)
    old_names: dict[str, dict[str, str]] = {}
    new_names: dict[str, dict[str, str]] = {}
    for task in tasks:
        known, name = merged_tasks.get(task.task_id), task.task_id
        if known is not None and name not in old_names and _has_modules(old):
            (known, _), (old_names[name], new_names[name]) = with_equal_names([known, task])
        merged_tasks[name] = _merge_task(known, task)
    kept = {k: v for k, v in old.meta.items() if k not in meta} | {"created": old.meta["created"]}
    return write_corpus(
        folder,
        {**meta, **kept},
        merged_tasks.values(),
        _merged(_under(old_names, old.iter_programs()), _under(new_names, programs)),
    )


def _has_modules(corpus: Corpus) -> bool:
    """Whether its tasks hold TIR modules, whose blocks have names."""
    return corpus.meta.get("framework", _DEFAULTS["framework"]) == "metaschedule"


def _under(new_names: Mapping[str, Mapping[str, str]], programs: Iterable[Program]) -> Iterator[Program]:
    """Programs under the new names of their tasks, by task id."""
    return (renamed_program(program, new_names.get(program.task_id, {})) for program in programs)


def _merged(old: Iterable[Program], programs: Iterable[Program]) -> Iterator[Program]:
    new: dict[tuple[str, str], Program] = {}
    for program in programs:
        known = new.setdefault((program.task_id, program.key), program)
        if not known.valid and program.valid:
            new[program.task_id, program.key] = program
    for program in old:
        better = new.pop((program.task_id, program.key), program)
        yield better if not program.valid and better.valid else program
    yield from new.values()


def _told(corpus: Corpus) -> dict[str, Task]:
    """Its tasks with what they compute: format 1 leaves that to its modules, later ones say it."""
    if corpus.meta.get("format") != 1:
        return dict(corpus.tasks)
    known = computations(corpus)
    return {task_id: replace(task, computation=known[task_id]) for task_id, task in corpus.tasks.items()}


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


# Whole corpora ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Merged:
    """What merging corpora came to.

    Attributes:
        corpus: the whole.
        given: programs of the inputs, counted as often as they are there.
        changed: whether the folder holds something else than before.
    """

    corpus: Corpus
    given: int
    changed: bool


def merge_corpora(path: Path | str, folders: Sequence[Path | str]) -> Merged:
    """Make one corpus of several of one device, e.g. the shards of a collection; what `path` holds stays in it.

    The result depends neither on the order of the inputs nor on how often one is given: of two measurements of a
    program the one that did not fail is kept, else the earlier. One task's programs are in memory at a time, and
    `path` is replaced at once, when all is written.

    Raises:
        CorpusError: a folder is not a corpus, or damaged; of a newer format: `NewerCorpusError`.
        CorpusMismatchError: they differ in device, target, TVM, framework, licence, or in what they test on.
        CorpusWriteError: the disk is full or `path` may not be written; what it held is still there.
    """
    out = Path(path)
    inputs = [Corpus.open(folder) for folder in {Path(folder).resolve(): folder for folder in folders}.values()]
    before = [Corpus.open(out)] if (out / META_FILE).exists() else []
    corpora = [*before, *inputs]
    for corpus in corpora[1:]:
        _check_alike(corpora[0], corpus)
    tasks = [_told(corpus) for corpus in corpora]
    task_ids = sorted({task_id for each in tasks for task_id in each})
    with CorpusWriter(out, _meta_of(corpora)) as writer:
        for task_id in task_ids:
            holders = [corpus for corpus in corpora if task_id in corpus.tasks]
            held = [each[task_id] for each in tasks if task_id in each]
            new_names: list[dict[str, str]] = [{} for _ in held]
            if _has_modules(corpora[0]):
                held, new_names = with_equal_names(held)
            writer.add_task(_task_of(held))
            for program in _programs_of(holders, task_id, new_names):
                writer.add(program)
    whole = Corpus.open(out)
    given = sum(corpus.meta["programs"] for corpus in inputs)
    return Merged(whole, given, not before or before[0].meta != whole.meta)


def _check_alike(first: Corpus, other: Corpus) -> None:
    for name in CORPUS_IDENTITY:
        one, two = (corpus.meta.get(name, _DEFAULTS.get(name)) for corpus in (first, other))
        if one != two:
            raise CorpusMismatchError(
                f"{first.path} is of {name} {one!r}, {other.path} of {two!r}",
                remedy="merge each kind into a folder of its own; `tchub train` takes several corpora",
                field=name,
                path=str(other.path),
            )


_DEFAULTS = {"framework": "metaschedule"}


def _programs_of(corpora: Sequence[Corpus], task_id: str, new_names: Sequence[dict[str, str]]) -> Iterator[Program]:
    best: dict[str, Program] = {}
    for corpus, names in zip(corpora, new_names, strict=True):
        for program in _under({task_id: names}, corpus.programs(task_id)):
            known = best.setdefault(program.key, program)
            if known is not program and _rank(program) < _rank(known):
                best[program.key] = program
    for key in sorted(best):
        yield best[key]


def _rank(program: Program) -> tuple[bool, float, str]:
    """Of two measurements of a program, the one with the smaller rank is kept."""
    at = program.measured_at
    return not program.valid, math.inf if math.isnan(at) else at, repr(program)


def _task_of(tasks: Sequence[Task]) -> Task:
    counts: dict[str, int] = {}
    for network, count in (item for task in tasks for item in task.networks):
        counts[network] = max(count, counts.get(network, 0))
    named = min(tasks, key=lambda task: (task.name, task.workload, task.op, task.flops))
    computation = max(task.computation for task in tasks)
    return replace(named, computation=computation, networks=tuple(sorted(counts.items())))


def _meta_of(corpora: Sequence[Corpus]) -> dict[str, Any]:
    """What holds for all: a fact stays where all agree. Each rule gives the same whatever the order."""
    metas = [corpus.meta for corpus in corpora]
    first = metas[0]
    found = {k: v for k, v in first.items() if k not in _OWN and all(k in m and m[k] == v for m in metas)}
    found["created"] = min(meta["created"] for meta in metas)
    commands = sorted({c for meta in metas for c in meta.get("commands", [meta.get("command")]) if c})
    if commands:
        found["command"] = commands[0] if len(commands) == 1 else _MERGE_COMMAND
    if len(commands) > 1:
        found["commands"] = commands
    if sources := sorted({s for meta in metas for s in str(meta.get("source") or "").split("; ") if s}):
        found["source"] = "; ".join(sources)
    if sheets := [meta["device_sheet"] for meta in metas if "device_sheet" in meta]:
        # Nodes of one kind differ in what was measured of them; one of them stands for all.
        found["device_sheet"] = min(sheets, key=lambda sheet: json.dumps(sheet, sort_keys=True))
    if any("split" in meta for meta in metas):
        found["split"] = _split_of(corpora)
    return found


def _split_of(corpora: Sequence[Corpus]) -> dict[str, list[str]]:
    parts: dict[str, str] = {}
    for corpus in corpora:
        if corpus.tasks and "split" not in corpus.meta:
            raise _other_split(corpus, "says nothing of its split, which another one fixes")
        for part, task_ids in corpus.meta.get("split", {}).items():
            for task_id in task_ids or ():
                if parts.setdefault(task_id, part) != part:
                    raise _other_split(corpus, f"has task {task_id} in {part}, another one in {parts[task_id]}")
    return {name: sorted(t for t, part in parts.items() if part == name) for name in sorted(set(parts.values()))}


def _other_split(corpus: Corpus, what: str) -> CorpusMismatchError:
    return CorpusMismatchError(
        f"{corpus.path} {what}",
        remedy="import them again with one split file",
        field="split",
        path=str(corpus.path),
    )
