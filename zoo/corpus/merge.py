"""Growing a corpus, and making one of several: nothing is lost, nothing is twice, and all latencies compare."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from .canonical import renamed_program, with_equal_names
from .corpus import Corpus
from .schema import CORPUS_SCOPE, META_FILE, CorpusError, Program, Task, difference
from .writer import CorpusWriter, write_corpus

# Facts that the writer fills in, or that merge by a rule of their own.
_OWN = ("files", "format", "tasks", "programs", "created", "source", "device_sheet")
_METASCHEDULE = "metaschedule"  # the framework of a corpus that names none


def merge_corpus(
    path: Path | str, meta: Mapping[str, Any], tasks: Iterable[Task], programs: Iterable[Program]
) -> Corpus:
    """Add tasks and programs to a corpus, or create it; adding the same ones twice changes nothing.

    A program that is there stays, unless it had failed and the new one did not. A task that is there gains the
    networks that it lacked; where its blocks have other names, it and all its programs get canonical ones.

    Raises:
        CorpusError: the programs are of another device, CPU model or target.
    """
    folder = Path(path)
    if not (folder / META_FILE).exists():
        return write_corpus(folder, meta, tasks, programs)
    old = Corpus.open(folder)
    if name := difference(old.meta, {**old.meta, **meta}):
        problem = f"the corpus {folder} is of {name} {old.meta.get(name)!r}, the new programs of {meta[name]!r}"
        remedy = "write them to a folder of their own: latencies of two devices do not mix"
        raise CorpusError(problem, remedy=remedy, field=name, path=str(folder))
    merged = dict(old.tasks)
    # New names of blocks, where the two name those of a task differently, and so the programs of each.
    renamed: tuple[dict[str, dict[str, str]], ...] = {}, {}
    for task in tasks:
        known, name = merged.get(task.task_id), task.task_id
        if known is None:
            merged[name] = task
            continue
        if name not in renamed[0] and _has_modules(old):
            (known, _), (renamed[0][name], renamed[1][name]) = with_equal_names([known, task])
        networks = tuple(sorted((dict(known.networks) | dict(task.networks)).items()))
        merged[name] = replace(known, networks=networks, computation=known.computation or task.computation)
    kept = {k: v for k, v in old.meta.items() if k not in meta} | {"created": old.meta["created"]}
    both = zip(renamed, (old.iter_programs(), programs), strict=True)
    all_programs = (renamed_program(one, names.get(one.task_id, {})) for names, part in both for one in part)
    return write_corpus(folder, {**meta, **kept}, merged.values(), all_programs)


def _has_modules(corpus: Corpus) -> bool:
    """Return whether its tasks hold TIR modules, whose blocks have names."""
    return corpus.meta.get("framework", _METASCHEDULE) == _METASCHEDULE


# Whole corpora ---------------------------------------------------------------------------------------


class MergeResult(NamedTuple):
    """The whole corpus, the number of programs of its inputs, and whether its folder held something else before."""

    corpus: Corpus
    given: int
    changed: bool


def merge_corpora(path: Path | str, folders: Sequence[Path | str]) -> MergeResult:
    """Make one corpus of several of one device, e.g. the shards of a collection; what `path` holds stays in it.

    The result depends neither on the order of the inputs nor on how often one is given: of two measurements of a
    program the one that did not fail is kept, else the earlier. One task's programs are in memory at a time, and
    `path` is replaced at once, when all is written.

    Raises:
        CorpusError: a folder is not a corpus, or damaged, or of a newer format.
        CorpusError: they differ in device, target, TVM, framework, licence, or split.
        StorageError: the disk is full or `path` may not be written; what it held is still there.
    """
    out = Path(path)
    inputs = [Corpus.open(folder) for folder in {Path(folder).resolve(): folder for folder in folders}.values()]
    before = [Corpus.open(out)] if (out / META_FILE).exists() else []
    corpora = [*before, *inputs]
    metas = [{"framework": _METASCHEDULE, **corpus.meta} for corpus in corpora]
    for corpus, meta in zip(corpora, metas, strict=True):
        if name := difference(metas[0], meta, CORPUS_SCOPE):
            problem = f"{corpora[0].path} is of {name} {metas[0].get(name)!r}, {corpus.path} of {meta.get(name)!r}"
            remedy = "merge each kind into a folder of its own; `tchub train` takes several corpora"
            raise CorpusError(problem, remedy=remedy, field=name, path=str(corpus.path))
    with CorpusWriter(out, _meta_of(corpora)) as writer:
        for task_id in sorted({task_id for corpus in corpora for task_id in corpus.tasks}):
            holders = [corpus for corpus in corpora if task_id in corpus.tasks]
            tasks, new_names = [corpus.tasks[task_id] for corpus in holders], [dict[str, str]()] * len(holders)
            if _has_modules(corpora[0]):
                tasks, new_names = with_equal_names(tasks)
            writer.add_task(_task_of(tasks))
            parts = zip(holders, new_names, strict=True)
            programs = [renamed_program(one, names) for corpus, names in parts for one in corpus.programs(task_id)]
            for program in sorted(programs, key=_rank):
                writer.add(program)
    whole = Corpus.open(out)
    given = sum(corpus.meta["programs"] for corpus in inputs)
    return MergeResult(whole, given, not before or before[0].meta != whole.meta)


def _rank(program: Program) -> tuple[bool, float, str]:
    """Return the order in which the writer sees measurements: of those of one program it keeps the first."""
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
    """Return what holds for all: a fact stays where all agree. Each rule gives the same whatever the order."""
    metas = [corpus.meta for corpus in corpora]
    meta = {k: v for k, v in metas[0].items() if k not in _OWN and all(k in m and m[k] == v for m in metas)}
    meta["created"] = min(each["created"] for each in metas)
    meta.setdefault("command", "tchub corpus import DIR... --out DIR")
    if sources := sorted({s for each in metas for s in str(each.get("source") or "").split("; ") if s}):
        meta["source"] = "; ".join(sources)
    if sheets := [each["device_sheet"] for each in metas if "device_sheet" in each]:
        # Nodes of one kind differ in what was measured of them; one of them stands for all.
        meta["device_sheet"] = min(sheets, key=lambda sheet: json.dumps(sheet, sort_keys=True))
    return meta
