"""Writing a corpus folder: program by program, in bounded memory."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from ..features.columns import OPS
from ..files import storing
from .corpus import Corpus, FileFacts, settle, waiting
from .schema import (
    DICTIONARY_COLUMNS,
    ERROR_KINDS,
    FORMAT,
    FRAMEWORKS,
    META_FILE,
    PROGRAMS_FILE,
    PROGRAMS_SCHEMA,
    REQUIRED_META,
    STRATEGIES,
    TASKS_FILE,
    TASKS_SCHEMA,
    CorpusError,
    Program,
    Task,
)
from .spill import Spill, TaskPrograms

# Level 12 halves the traces against the default of 1; a page of 8 MiB lets the compressor see the traces of a
# task together, which differ in a few numbers only.
_PARQUET: dict[str, Any] = {
    "compression": "zstd",
    "compression_level": 12,
    "data_page_size": 8 << 20,
    "write_statistics": ["task_id"],
}


class CorpusWriter:
    """A corpus folder in the making, as a context manager; it is there once the block was left without an error.

    Tasks and programs may come in any order and number; of programs with one (task_id, key) the first that has a
    latency stays. All files take the place of the old ones by one rename (see `corpus`): an interrupted writer leaves
    the old corpus or the new.

    Attributes:
        meta: the content of `corpus.json`; it may be completed until the end. At least `device`, `family`,
            `target`, `tvm_version` and `licence`; counts, format and time of creation are filled in.
        tasks: the tasks so far, by id.
        added: how many programs were added.
    """

    def __init__(self, path: Path | str, meta: Mapping[str, Any]) -> None:
        self.path = Path(path)
        self.meta = dict(meta)
        self.tasks: dict[str, Task] = {}
        self.added = 0
        self._cleanup = contextlib.ExitStack()
        self._spill: Spill | None = None
        self._chosen: dict[str, TaskPrograms] | None = None

    def __enter__(self) -> CorpusWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._cleanup, storing(self.path):
            if error is None:
                self._finish()

    def add_task(self, task: Task) -> None:
        """Add a task; a task of the same id is replaced.

        Raises:
            CorpusError: the task's operator type is unknown.
        """
        if task.op not in OPS:
            raise CorpusError(f"task {task.task_id} has the unknown operator type {task.op!r}", known=list(OPS))
        self.tasks[task.task_id] = task

    def add(self, program: Program) -> None:
        """Add a program of a known task.

        Raises:
            CorpusError: the program is not valid, or its task unknown.
            StorageError: the disk is full or the folder may not be written.
        """
        _check_program(program, self.tasks)
        with storing(self.path):
            self._open().add(program)
        self.added += 1

    def choose(self) -> dict[str, TaskPrograms]:
        """Choose the programs to keep and count them by task; nothing can be added after."""
        if self._chosen is None:
            with storing(self.path):
                self._chosen = self._open().choose()
        return self._chosen

    def discard(self, task_id: str) -> None:
        """Leave out a task and its programs, which were chosen."""
        self._open().discard(task_id)
        self.choose().pop(task_id, None)
        del self.tasks[task_id]

    def _open(self) -> Spill:
        if self._spill:
            return self._spill
        if not self.path.exists():
            self.path.mkdir(parents=True)
            self._cleanup.callback(_remove_if_empty, self.path)
        for name in (TASKS_FILE, PROGRAMS_FILE, META_FILE):
            self._cleanup.callback(self._temporary(name).unlink, missing_ok=True)
        self._spill = Spill(self._temporary("spill"), self._cleanup)
        return self._spill

    def _temporary(self, name: str) -> Path:
        return self.path / f".{name}.{os.getpid()}.tmp"

    def _finish(self) -> None:
        missing = [name for name in REQUIRED_META if not self.meta.get(name)]
        if missing:
            raise CorpusError(f"corpus.json lacks {', '.join(missing)}", remedy="pass them to the writer as `meta`")
        chosen, spill = self.choose(), self._open()
        layout: dict[str, Any] = {"use_dictionary": DICTIONARY_COLUMNS, **_PARQUET}
        with pq.ParquetWriter(self._temporary(PROGRAMS_FILE), PROGRAMS_SCHEMA, **layout) as file:
            for table in spill.groups():
                file.write_table(table, row_group_size=len(table))
        rows = [self.tasks[task_id].as_row() for task_id in sorted(self.tasks)]
        pq.write_table(pa.Table.from_pylist(rows, schema=TASKS_SCHEMA), self._temporary(TASKS_FILE), **_PARQUET)
        files = {name: _facts_of(self._temporary(name)) for name in (TASKS_FILE, PROGRAMS_FILE)}
        document = {
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            **self.meta,
            "format": FORMAT,
            "tasks": len(self.tasks),
            "programs": sum(programs.total for programs in chosen.values()),
            "files": msgspec.to_builtins(files),
        }
        text = json.dumps(document, indent=2, sort_keys=True) + "\n"
        self._temporary(META_FILE).write_text(text, encoding="utf-8")
        for name, facts in files.items():
            os.replace(self._temporary(name), waiting(self.path / name, facts.sha256))
        os.replace(self._temporary(META_FILE), self.path / META_FILE)  # from here on it is the new corpus
        settle(self.path, files)


def write_corpus(
    path: Path | str, meta: Mapping[str, Any], tasks: Iterable[Task], programs: Iterable[Program]
) -> Corpus:
    """Write a corpus folder, replacing the one that is there (see `CorpusWriter`).

    Args:
        path: the folder; created when missing.
        meta: see `CorpusWriter`.
        tasks: the tasks, one for every `task_id` of `programs`.
        programs: measured programs; (task_id, key) is unique. They may be an iterator over the old corpus.

    Returns:
        The corpus, opened.

    Raises:
        CorpusError: a record is not valid, or a program occurs twice.
        StorageError: the disk is full or the folder may not be written.
    """
    with CorpusWriter(path, meta) as writer:
        for task in tasks:
            writer.add_task(task)
        for program in programs:
            writer.add(program)
        if twice := [task_id for task_id, counts in writer.choose().items() if counts.duplicates]:
            raise CorpusError(f"a program of task {twice[0]} occurs twice", remedy="merge by (task_id, key) first")
    return Corpus.open(path)


def _check_program(program: Program, tasks: Mapping[str, Task]) -> None:
    name = f"program {program.key} of task {program.task_id}"
    if program.task_id not in tasks:
        raise CorpusError(f"{name}: a task which the corpus lacks", remedy="add the task first")
    if program.strategy not in STRATEGIES:
        raise CorpusError(f"{name} has the unknown strategy {program.strategy!r}", known=list(STRATEGIES))
    if program.framework not in FRAMEWORKS:
        raise CorpusError(f"{name} has the unknown framework {program.framework!r}", known=list(FRAMEWORKS))
    if program.error is not None and program.error not in ERROR_KINDS:
        raise CorpusError(f"{name} has the unknown error kind {program.error!r}", known=list(ERROR_KINDS))
    if program.error is None and not program.valid:
        raise CorpusError(f"{name} has no error and no usable latency ({program.latency})")


def _remove_if_empty(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def _facts_of(file: Path) -> FileFacts:
    with file.open("rb") as stream:
        return FileFacts(file.stat().st_size, hashlib.file_digest(stream, "sha256").hexdigest())
