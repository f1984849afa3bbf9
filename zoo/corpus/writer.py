"""Writing a corpus folder: program by program, in bounded memory."""

import contextlib
import json
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from ..files import file_sha256, storing
from .corpus import Corpus, FileFacts, settle, waiting
from .schema import (
    DICTIONARY_COLUMNS,
    FORMAT,
    META_FILE,
    PROGRAMS_FILE,
    PROGRAMS_SCHEMA,
    REQUIRED_META,
    TASKS_FILE,
    TASKS_SCHEMA,
    CorpusError,
    Program,
    Task,
    check_programs,
)

# A row group holds programs of one task, so that a reader of the task touches its pages only.
GROUP_ROWS = 8192
# Level 12 halves the traces against the default of 1; a page of 8 MiB lets the compressor see the traces of a
# task together, which differ in a few numbers only.
_PARQUET: dict[str, Any] = {
    "compression": "zstd",
    "compression_level": 12,
    "data_page_size": 8 << 20,
    "write_statistics": ["task_id"],
}
# The scratch file lives as long as the writer: nothing is lost with it, so that it needs neither journal nor sync.
_SCRATCH = """
PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA cache_size=-65536;
CREATE TABLE programs (task_id TEXT, key TEXT, error TEXT, size INT, row BLOB, PRIMARY KEY (task_id, key));
BEGIN
"""
_PUT = """
INSERT INTO programs VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE
SET error = NULL, size = excluded.size, row = excluded.row WHERE error IS NOT NULL AND excluded.error IS NULL
"""
_CODEC = "lz4"


class CorpusWriter:
    """A corpus folder in the making, as a context manager; it is there once the block was left without an error.

    Tasks and programs may come in any order and number; they wait by task in a scratch file. Of programs with one
    (task_id, key) the first that has a latency stays: the fastest of several measurements would be too fast. All files
    take the place of the old ones by one rename (see `corpus`): an interrupted writer leaves the old corpus or the new.

    Attributes:
        meta: the content of `corpus.json`; it may be completed until the end. At least `device`, `family`,
            `target`, `tvm_version` and `licence`; counts, format and time of creation are filled in.
        added: how many programs of each task were added.
    """

    def __init__(self, path: Path | str, meta: Mapping[str, Any]) -> None:
        self.path = Path(path)
        self.meta = dict(meta)
        self.tasks: dict[str, Task] = {}
        self.added = Counter[str]()
        self._cleanup = contextlib.ExitStack()
        self._scratch: sqlite3.Connection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._cleanup, storing(self.path):
            if error is None:
                self._finish()

    def add_task(self, task: Task) -> None:
        """Add a task; one of the same id is replaced. Raise CorpusError where it is none that there can be."""
        task.check()
        self.tasks[task.task_id] = task

    def add(self, program: Program) -> None:
        """Add a program; raise CorpusError where its task is unknown, StorageError where the disk is full."""
        if program.task_id not in self.tasks:
            raise CorpusError(f"a program of task {program.task_id}, which the corpus lacks", remedy="add it first")
        row = msgspec.msgpack.encode([getattr(program, name) for name in PROGRAMS_SCHEMA.names])
        packed = pa.compress(row, _CODEC, asbytes=True)
        self._query(_PUT, program.task_id, program.key, program.error, len(row), packed)
        self.added[program.task_id] += 1

    def count(self) -> dict[str, Counter[str | None]]:
        """Count the programs that are kept, by task and kind of error; None is that of those that have a latency."""
        counts = {task_id: Counter[str | None]() for task_id in self.added}
        for task_id, error, number in self._query("SELECT task_id, error, COUNT(*) FROM programs GROUP BY 1, 2"):
            counts[task_id][error] = number
        return counts

    def discard(self, task_id: str) -> None:
        """Leave out a task and its programs so far."""
        self._query("DELETE FROM programs WHERE task_id = ?", task_id)
        self.added.pop(task_id, None)
        del self.tasks[task_id]

    def _query(self, query: str, *values: object) -> sqlite3.Cursor:
        with storing(self.path):
            if self._scratch is None:
                self._scratch = self._open()
            try:
                return self._scratch.execute(query, values)
            except sqlite3.OperationalError as error:
                raise OSError(f"{error} ({self._temporary('scratch')})") from error

    def _open(self) -> sqlite3.Connection:
        if not self.path.exists():
            self.path.mkdir(parents=True)
            self._cleanup.enter_context(contextlib.suppress(OSError))  # it stays where a corpus is in it
            self._cleanup.callback(self.path.rmdir)
        for name in (TASKS_FILE, PROGRAMS_FILE, META_FILE, "scratch"):
            self._cleanup.callback(self._temporary(name).unlink, missing_ok=True)
        scratch = sqlite3.connect(self._temporary("scratch"), isolation_level=None)
        self._cleanup.callback(scratch.close)
        scratch.executescript(_SCRATCH)
        return scratch

    def _temporary(self, name: str) -> Path:
        return self.path / f".{name}.{os.getpid()}.tmp"

    def _groups(self) -> Iterator[pa.Table]:
        """Yield the programs by task id, at most `GROUP_ROWS` of one task at a time, sorted by key."""
        names = PROGRAMS_SCHEMA.names
        for task_id in sorted(self.added):
            cursor = self._query("SELECT row, size FROM programs WHERE task_id = ? ORDER BY key", task_id)
            while packed := cursor.fetchmany(GROUP_ROWS):
                rows = [msgspec.msgpack.decode(pa.decompress(row, size, _CODEC)) for row, size in packed]
                table = pa.table(dict(zip(names, zip(*rows, strict=True), strict=True)), schema=PROGRAMS_SCHEMA)
                check_programs(table, self.path)
                yield table

    def _finish(self) -> None:
        missing = [name for name in REQUIRED_META if not self.meta.get(name)]
        if missing:
            raise CorpusError(f"corpus.json lacks {', '.join(missing)}", remedy="pass them to the writer as `meta`")
        programs = sum(counts.total() for counts in self.count().values())
        layout: dict[str, Any] = {"use_dictionary": DICTIONARY_COLUMNS, **_PARQUET}
        with pq.ParquetWriter(self._temporary(PROGRAMS_FILE), PROGRAMS_SCHEMA, **layout) as file:
            for table in self._groups():
                file.write_table(table, row_group_size=len(table))
        tasks = [self.tasks[task_id] for task_id in sorted(self.tasks)]
        rows = [{name: getattr(task, name) for name in TASKS_SCHEMA.names} for task in tasks]
        pq.write_table(pa.Table.from_pylist(rows, schema=TASKS_SCHEMA), self._temporary(TASKS_FILE), **_PARQUET)
        written = {name: self._temporary(name) for name in (TASKS_FILE, PROGRAMS_FILE)}
        files = {name: FileFacts(file.stat().st_size, file_sha256(file)) for name, file in written.items()}
        document = {
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            **self.meta,
            "format": FORMAT,
            "tasks": len(self.tasks),
            "programs": programs,
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
    """Write a corpus folder of records in any order, replacing the one that is there; return the corpus.

    Errors and `meta` are as of `CorpusWriter`; `programs` may be an iterator over the old corpus.
    """
    with CorpusWriter(path, meta) as writer:
        for task in tasks:
            writer.add_task(task)
        for program in programs:
            writer.add(program)
    return Corpus.open(path)
