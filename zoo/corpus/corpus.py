"""Reading a corpus folder: metadata and tasks at once, programs task by task."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import compute as pc

from .schema import (
    FORMAT,
    META_FILE,
    PROGRAMS_FILE,
    PROGRAMS_SCHEMA,
    TASKS_FILE,
    TASKS_SCHEMA,
    CorpusError,
    NewerCorpusError,
    Program,
    Task,
)

TABLES = (TASKS_FILE, PROGRAMS_FILE)


def waiting(table: Path, sha256: str) -> Path:
    """Where a table of this hash waits to become `table`."""
    return table.with_name(f".{table.name}.{sha256}")


def settle(folder: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
    """Move the tables that still wait, by what `corpus.json` says of the `files`, to their places."""
    for name in TABLES:
        sha256 = str(files.get(name, {}).get("sha256"))
        if sha256.isalnum():  # it may be anybody's file: no path
            with contextlib.suppress(OSError):  # none waits, or it cannot be moved: then the sizes are wrong
                os.replace(waiting(folder / name, sha256), folder / name)


# Columns that format 1 lacks -> what stands there instead.
_NEW_IN_2: dict[str, str | None] = {"computation": "", "primitives": None, "licence": None, "source": None}


@dataclass(frozen=True)
class Corpus:
    """Measured programs of one device from one framework.

    The label of a program is the smallest latency of its task divided by its own latency, in (0, 1].

    Attributes:
        path: the folder.
        meta: `corpus.json`.
        tasks: the tasks by id, in the order of their ids.
    """

    path: Path
    meta: dict[str, Any]
    tasks: dict[str, Task]

    @classmethod
    def open(cls, path: Path | str) -> Corpus:
        """Open a corpus folder and check its format, its files' sizes and their columns.

        What a writer that was killed left half done is done first (see `replacing`).

        Raises:
            CorpusError: not a corpus, or a file is missing, cut short or lacks a column.
            NewerCorpusError: written by a newer tchub.
        """
        folder = Path(path)
        meta = _read_meta(folder)
        files = _files(folder, meta)
        settle(folder, files)
        _check_sizes(folder, files)
        tasks = _open_parquet(folder / TASKS_FILE)
        for file, schema in ((tasks, TASKS_SCHEMA), (_open_parquet(folder / PROGRAMS_FILE), PROGRAMS_SCHEMA)):
            _check_columns(folder, file.schema_arrow, schema, meta["format"])
        rows = _with_new_columns(tasks.read(), TASKS_SCHEMA).to_pylist()
        return cls(folder, meta, {row["task_id"]: Task.from_row(row) for row in rows})

    @cached_property
    def _footer(self) -> pq.FileMetaData:
        """The footer of `programs.parquet`: read once, since it grows with the number of row groups."""
        return _open_parquet(self.path / PROGRAMS_FILE).metadata

    @cached_property
    def _groups(self) -> dict[str, list[int]]:
        """Row groups of `programs.parquet` that hold programs of a task, told by their statistics where possible."""
        groups: dict[str, list[int]] = {}
        file = _open_parquet(self.path / PROGRAMS_FILE, self._footer)
        leaf = [file.schema.column(i).path for i in range(len(file.schema.names))].index("task_id")
        for index in range(file.num_row_groups):
            found = self._footer.row_group(index).column(leaf).statistics
            if found is not None and found.has_min_max and found.min == found.max and not found.null_count:
                names = [found.min]
            else:
                names = file.read_row_group(index, columns=["task_id"])["task_id"].unique().to_pylist()
            for task_id in names:
                groups.setdefault(task_id, []).append(index)
        return groups

    def table(self, task_id: str, columns: list[str] | None = None) -> pa.Table:
        """The programs of a task as an Arrow table, failed ones included; empty when it has none.

        Raises:
            CorpusError: no such task.
        """
        if task_id not in self.tasks:
            raise CorpusError(f"the corpus {self.path} has no task {task_id}", task_id=task_id)
        names = [name for name in PROGRAMS_SCHEMA.names if columns is None or name in columns or name == "task_id"]
        file = _open_parquet(self.path / PROGRAMS_FILE, self._footer)
        there = [name for name in names if name in file.schema_arrow.names]
        read = file.read_row_groups(self._groups.get(task_id, []), columns=there)
        return _with_new_columns(read.filter(pc.field("task_id") == task_id), PROGRAMS_SCHEMA, names)

    def programs(self, task_id: str) -> list[Program]:
        """The programs of a task, failed ones included, in the order of their keys.

        Raises:
            CorpusError: no such task.
        """
        return [Program.from_row(row) for row in self.table(task_id).sort_by("key").to_pylist()]

    def iter_programs(self) -> Iterator[Program]:
        """Every program, task by task."""
        for task_id in self.tasks:
            yield from self.programs(task_id)

    @property
    def networks(self) -> tuple[str, ...]:
        """Names of the networks that the tasks came from."""
        return tuple(sorted({name for task in self.tasks.values() for name, _ in task.networks}))


def _read_meta(folder: Path) -> dict[str, Any]:
    file = folder / META_FILE
    if not file.is_file():
        raise CorpusError(
            f"{folder} is not a corpus: it has no {META_FILE}",
            remedy="name a folder that `tchub collect --out` wrote",
            path=str(folder),
        )
    try:
        meta = json.loads(file.read_text(encoding="utf-8"))
        number = meta["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise CorpusError(
            f"{file} cannot be read: {error!r}", remedy="collect or copy the corpus again", path=str(file)
        ) from error
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise CorpusError(f"{file} has the format {number!r}, not a number", path=str(file))
    if number > FORMAT:
        raise NewerCorpusError(
            f"the corpus {folder} has format {number}; this tchub reads up to {FORMAT}",
            remedy="upgrade: pip install -U tchub",
            path=str(folder),
            format=number,
            known=FORMAT,
        )
    return meta


def _files(folder: Path, meta: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """What `corpus.json` says of each other file, by name."""
    files = meta.get("files", {})
    if not isinstance(files, dict) or not all(isinstance(facts, dict) for facts in files.values()):
        raise CorpusError(
            f"{folder / META_FILE} does not tell the other files",
            remedy="collect or copy the corpus again",
            path=str(folder),
        )
    return files


def _check_sizes(folder: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
    for name, facts in files.items():
        file, wanted = folder / name, facts.get("bytes")
        size = file.stat().st_size if file.is_file() else 0
        if size != wanted:
            raise CorpusError(
                f"{file} has {size} bytes, {META_FILE} says {wanted}",
                remedy="the writer was interrupted or the copy is incomplete: write or copy the corpus again",
                path=str(file),
            )


def _open_parquet(file: Path, metadata: pq.FileMetaData | None = None) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(file, metadata=metadata)
    except (OSError, pa.ArrowException) as error:
        raise CorpusError(
            f"{file} cannot be read: {error}", remedy="collect or copy the corpus again", path=str(file)
        ) from error


def _with_new_columns(table: pa.Table, schema: pa.Schema, names: list[str] | None = None) -> pa.Table:
    """The columns in the order of the schema; those that format 1 lacks are filled in."""
    for name in names or schema.names:
        if name not in table.column_names:
            empty = pa.repeat(pa.scalar(_NEW_IN_2[name], schema.field(name).type), len(table))
            table = table.append_column(schema.field(name), empty)
    return table.select(names or schema.names)


def _check_columns(folder: Path, found: pa.Schema, wanted: pa.Schema, number: int) -> None:
    wrong = [
        field.name
        for field in wanted
        if not (number == 1 and field.name in _NEW_IN_2)
        and (field.name not in found.names or found.field(field.name).type != field.type)
    ]
    if wrong:
        raise CorpusError(
            f"{folder} lacks the column{'s' * (len(wrong) > 1)} {', '.join(wrong)} (or has another type)",
            remedy="the format number of a corpus with other columns is another one: collect it again",
            path=str(folder),
            columns=wrong,
        )
