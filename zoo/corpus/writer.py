"""Writing a corpus folder: whole, or merged into the one that is there."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from .corpus import Corpus
from .errors import CorpusError, CorpusMismatchError, CorpusWriteError
from .schema import (
    DICTIONARY_COLUMNS,
    ERROR_KINDS,
    FORMAT,
    META_FILE,
    OPS,
    PROGRAMS_FILE,
    PROGRAMS_SCHEMA,
    REQUIRED_META,
    STRATEGIES,
    TASKS_FILE,
    TASKS_SCHEMA,
    Program,
    Task,
)

# Level 12 halves the traces against the default of 1 and still writes 12,000 programs in seconds; a page of
# 8 MiB lets the compressor see all traces of a task at once, which differ in a few numbers only.
_PARQUET: dict[str, Any] = {
    "compression": "zstd",
    "compression_level": 12,
    "data_page_size": 8 << 20,
    "write_statistics": ["task_id"],
}
# What must agree before programs may share a corpus.
IDENTITY = ("device", "family", "cpu_model", "target")


def write_corpus(
    path: Path | str, meta: Mapping[str, Any], tasks: Iterable[Task], programs: Iterable[Program]
) -> Corpus:
    """Write a corpus folder, replacing the one that is there.

    `corpus.json` is replaced last and names the size of the other files, so an interrupted writer leaves
    either the old corpus or one that `Corpus.open` refuses; each file is written under a temporary name.

    Args:
        path: the folder; created when missing.
        meta: at least `device`, `family`, `target`, `tvm_version` and `licence`; counts, format and time of
            creation are filled in.
        tasks: the tasks, one for every `task_id` of `programs`.
        programs: measured programs; (task_id, key) is unique.

    Returns:
        The corpus, opened.

    Raises:
        CorpusError: a record is not valid.
        CorpusWriteError: the disk is full or the folder may not be written.
    """
    folder = Path(path)
    task_rows = {task.task_id: task for task in tasks}
    grouped = _group(programs)
    _check_records(meta, task_rows, grouped)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as cleanup:
            _write_files(folder, cleanup, meta, task_rows, grouped)
    except OSError as error:
        raise CorpusWriteError(
            f"cannot write the corpus {folder}: {error}",
            remedy="free some space or choose another folder; the journal of measurements is untouched",
            path=str(folder),
        ) from error
    return Corpus.open(folder)


def merge_corpus(
    path: Path | str, meta: Mapping[str, Any], tasks: Iterable[Task], programs: Iterable[Program]
) -> Corpus:
    """Add tasks and programs to a corpus, or create it; adding the same ones twice changes nothing.

    A program that is there already stays as it is, unless it had failed and the new one did not. A task that
    is there already gains the networks that it lacked.

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
    merged = {(p.task_id, p.key): p for p in old.iter_programs()}
    for program in programs:
        known = merged.get((program.task_id, program.key))
        if known is None or (not known.valid and program.valid):
            merged[program.task_id, program.key] = program
    kept = {k: v for k, v in old.meta.items() if k not in meta} | {"created": old.meta["created"]}
    return write_corpus(folder, {**meta, **kept}, merged_tasks.values(), merged.values())


def _merge_task(old: Task | None, new: Task) -> Task:
    if old is None:
        return new
    counts = dict(old.networks) | dict(new.networks)
    return replace(old, networks=tuple(sorted(counts.items())))


def _check_same_device(old: Mapping[str, Any], new: Mapping[str, Any], folder: Path) -> None:
    for name in IDENTITY:
        if name in new and old.get(name) != new[name]:
            raise CorpusMismatchError(
                f"the corpus {folder} is of {name} {old.get(name)!r}, the new programs of {new[name]!r}",
                remedy="write them to a folder of their own: latencies of two devices do not mix",
                field=name,
                path=str(folder),
            )


def _group(programs: Iterable[Program]) -> dict[str, list[Program]]:
    grouped: dict[str, list[Program]] = {}
    for program in programs:
        grouped.setdefault(program.task_id, []).append(program)
    return {task_id: sorted(grouped[task_id], key=lambda p: p.key) for task_id in sorted(grouped)}


def _check_records(meta: Mapping[str, Any], tasks: Mapping[str, Task], grouped: Mapping[str, list[Program]]) -> None:
    missing = [name for name in REQUIRED_META if not meta.get(name)]
    if missing:
        raise CorpusError(f"corpus.json lacks {', '.join(missing)}", remedy="say them when writing the corpus")
    for task in tasks.values():
        if task.op not in OPS:
            raise CorpusError(f"task {task.task_id} has the unknown operator type {task.op!r}", known=list(OPS))
    for task_id, programs in grouped.items():
        if task_id not in tasks:
            raise CorpusError(f"{len(programs)} programs are of task {task_id}, which the corpus lacks")
        for earlier, program in zip([None, *programs], programs, strict=False):
            _check_program(program, earlier)


def _check_program(program: Program, earlier: Program | None) -> None:
    name = f"program {program.key} of task {program.task_id}"
    if earlier is not None and earlier.key == program.key:
        raise CorpusError(f"{name} occurs twice", remedy="merge by (task_id, key) first")
    if program.strategy not in STRATEGIES:
        raise CorpusError(f"{name} has the unknown strategy {program.strategy!r}")
    if program.error is not None and program.error not in ERROR_KINDS:
        raise CorpusError(f"{name} has the unknown error kind {program.error!r}")
    if program.error is None and not program.valid:
        raise CorpusError(f"{name} has no error and no usable latency ({program.latency})")


def _write_files(
    folder: Path,
    cleanup: contextlib.ExitStack,
    meta: Mapping[str, Any],
    tasks: Mapping[str, Task],
    grouped: Mapping[str, list[Program]],
) -> None:
    temporary = {}
    for name in (TASKS_FILE, PROGRAMS_FILE, META_FILE):
        temporary[name] = folder / f".{name}.{os.getpid()}.tmp"
        cleanup.callback(temporary[name].unlink, missing_ok=True)
    rows = [tasks[task_id].as_row() for task_id in sorted(tasks)]
    pq.write_table(pa.Table.from_pylist(rows, schema=TASKS_SCHEMA), temporary[TASKS_FILE], **_PARQUET)
    # One row group a task: a reader of one task then touches only its pages.
    layout: dict[str, Any] = {"use_dictionary": DICTIONARY_COLUMNS, **_PARQUET}
    with pq.ParquetWriter(temporary[PROGRAMS_FILE], PROGRAMS_SCHEMA, **layout) as writer:
        for programs in grouped.values():
            writer.write_table(pa.Table.from_pylist([p.as_row() for p in programs], schema=PROGRAMS_SCHEMA))
    document = {
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **meta,
        "format": FORMAT,
        "tasks": len(tasks),
        "programs": sum(map(len, grouped.values())),
        "files": {name: _fingerprint(temporary[name]) for name in (TASKS_FILE, PROGRAMS_FILE)},
    }
    temporary[META_FILE].write_text(json.dumps(document, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    for name, file in temporary.items():
        os.replace(file, folder / name)


def _fingerprint(file: Path) -> dict[str, Any]:
    return {"bytes": file.stat().st_size, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
