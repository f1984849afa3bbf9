"""Reading a corpus folder: metadata and tasks at once, programs task by task.

The files of a corpus are replaced as one: `corpus.json` decides, and each table waits beside the old one until then,
under its hash. Once `corpus.json` names that hash, the corpus is the new one, and whoever opens it moves what still
waits: a writer that is killed at any moment leaves the whole old corpus or the whole new one.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import msgspec
import pyarrow as pa
from pyarrow import dataset

from ..primitives import PrimitiveSequence, from_trace_json
from ..untrusted import parse_json, read_plain
from .schema import (
    FORMAT,
    META_FILE,
    PROGRAMS_FILE,
    PROGRAMS_SCHEMA,
    TASKS_FILE,
    TASKS_SCHEMA,
    CorpusError,
    Program,
    Task,
    check_programs,
)

# A ranking of fewer programs than this says nothing about a model.
MIN_PROGRAMS = 4
_LARGEST_META = 64 << 20  # bytes; a split of a million tasks takes 20
# A text of a table may be there once and count in every row, so that few bytes come to many: rows are read a few at a
# time, and no more than so many bytes of them.
_LARGEST_TABLE, _BATCH = 1 << 30, 256
_AGAIN = "collect or copy the corpus again"


class FileFacts(msgspec.Struct):
    """Size and hash of a table, as `corpus.json` has them."""

    bytes: int
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


# What becomes part of a path or of a command line.
_Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,99}$")]
_Table = Annotated[str, msgspec.Meta(pattern=rf"^({TASKS_FILE}|{PROGRAMS_FILE})$")]


class _Protocol(msgspec.Struct):
    """Task ids of each part of a split."""

    train: list[str] | None = None
    val: list[str] | None = None
    test: list[str] | None = None


class _Meta(msgspec.Struct):
    """The part of `corpus.json` that others depend on."""

    format: Annotated[int, msgspec.Meta(ge=1)]
    device: _Name
    family: _Name
    files: dict[_Table, FileFacts] = {}
    split: _Protocol | None = None
    framework: Literal["metaschedule", "ansor", "autotvm"] | None = None
    target: str | dict[str, Any] | None = None
    threads: Annotated[int, msgspec.Meta(ge=1)] | None = None
    device_sheet: dict[str, Any] | None = None
    cpu_model: str | None = None
    tvm_version: str | None = None
    licence: str | None = None
    source: str | None = None
    created: str | None = None
    notes: str | None = None


@dataclass(frozen=True)
class Corpus:
    """Measured programs of one device from one framework.

    The label of a program is the smallest latency of its task divided by its own latency, in (0, 1].

    Attributes:
        meta: `corpus.json`.
        tasks: the tasks by id, in the order of their ids.
    """

    path: Path
    meta: dict[str, Any]
    tasks: dict[str, Task]

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """Open a corpus folder and check its format, its files' sizes and their columns.

        First move the tables that a killed writer left waiting.

        Raises:
            CorpusError: not a corpus, of a newer tchub, or a file is missing, cut short or lacks a column.
        """
        folder = Path(path)
        meta, files = _read_meta(folder)
        settle(folder, files)
        for name, facts in files.items():
            file = folder / name
            size = file.stat().st_size if file.is_file() else 0
            if size != facts.bytes:
                problem = f"{file} has {size} bytes, {META_FILE} says {facts.bytes}"
                remedy = "the writer was interrupted or the copy is incomplete: write or copy the corpus again"
                raise CorpusError(problem, remedy=remedy, path=str(file))
        tasks = _open_table(folder / TASKS_FILE, TASKS_SCHEMA)
        _open_table(folder / PROGRAMS_FILE, PROGRAMS_SCHEMA)
        rows = _table(folder / TASKS_FILE, tasks).to_pylist()
        corpus = cls(folder, meta, {row["task_id"]: Task.from_row(row) for row in rows})
        for task in corpus.tasks.values():
            task.check()
        return corpus

    @cached_property
    def _groups(self) -> tuple[dataset.ParquetFileFragment, dict[str | None, list[int]]]:
        """`programs.parquet`, and its row groups by task; under None those whose statistics do not name one task."""
        path, groups = self.path / PROGRAMS_FILE, dict[str | None, list[int]]()
        (file,) = _open_table(path, PROGRAMS_SCHEMA).get_fragments()
        with _readable(path):
            for group in file.row_groups:
                facts = (group.statistics or {}).get("task_id", {"min": 0, "max": 1})
                groups.setdefault(facts["min"] if facts["min"] == facts["max"] else None, []).append(group.id)
        return file, groups

    def table(self, task_id: str, columns: list[str] | None = None) -> pa.Table:
        """Return the programs of a task as an Arrow table, failed ones included; empty when it has none.

        Raises:
            CorpusError: no such task, or a row holds a value that no program can have.
        """
        if task_id not in self.tasks:
            raise CorpusError(f"the corpus {self.path} has no task {task_id}", task_id=task_id)
        names = [name for name in PROGRAMS_SCHEMA.names if columns is None or name in (*columns, "task_id")]
        file, groups = self._groups
        rows = file.subset(row_group_ids=groups.get(task_id, []) + groups.get(None, []))
        of_task = dataset.field("task_id") == task_id
        table = _table(self.path / PROGRAMS_FILE, rows, PROGRAMS_SCHEMA, names, filter=of_task)
        check_programs(table, self.path)
        return table

    def programs(self, task_id: str) -> list[Program]:
        """Return the programs of a task, failed ones included, in the order of their keys; errors as of `table`."""
        return [Program.from_row(row) for row in self.table(task_id).sort_by("key").to_pylist()]

    def iter_programs(self) -> Iterator[Program]:
        """Yield every program, task by task."""
        for task_id in self.tasks:
            yield from self.programs(task_id)

    @property
    def networks(self) -> tuple[str, ...]:
        """Return the names of the networks that the tasks came from."""
        return tuple(sorted({name for task in self.tasks.values() for name, _ in task.networks}))


def usable_programs(corpus: Corpus, task_ids: Iterable[str]) -> dict[str, list[Program]]:
    """Return the valid programs of the tasks that have at least `MIN_PROGRAMS` of them."""
    valid = {task_id: [program for program in corpus.programs(task_id) if program.valid] for task_id in task_ids}
    return {task_id: programs for task_id, programs in valid.items() if len(programs) >= MIN_PROGRAMS}


def sequence_of(program: Program) -> PrimitiveSequence:
    """Return the program in the common language: as its corpus has it, else read from its MetaSchedule trace.

    Raises:
        TraceFormatError: neither can be read.
    """
    if program.primitives is not None:
        return PrimitiveSequence.from_json(program.primitives)
    return from_trace_json(program.trace)


def waiting(table: Path, sha256: str) -> Path:
    """Return the path at which a table of this hash waits to become `table`."""
    return table.with_name(f".{table.name}.{sha256}")


def settle(folder: Path, files: Mapping[str, FileFacts]) -> None:
    """Move the tables that still wait, by their hashes in `corpus.json`, to their names."""
    for name in (TASKS_FILE, PROGRAMS_FILE):
        if name in files:
            with contextlib.suppress(OSError):  # none waits, or it cannot be moved: then the sizes are wrong
                os.replace(waiting(folder / name, files[name].sha256), folder / name)


def _read_meta(folder: Path) -> tuple[dict[str, Any], dict[str, FileFacts]]:
    file = folder / META_FILE
    if not file.is_file():
        problem, remedy = f"{folder} is not a corpus: it has no {META_FILE}", "name a folder that `tchub collect` wrote"
        raise CorpusError(problem, remedy=remedy, path=str(folder))
    with _readable(file):
        meta = parse_json(read_plain(file, _LARGEST_META))
        checked = msgspec.convert(meta, _Meta)
    if checked.format != FORMAT:
        problem = f"the corpus {folder} has format {checked.format}; this tchub reads {FORMAT}"
        raise CorpusError(problem, remedy="upgrade: pip install -U tchub", path=str(folder), format=checked.format)
    return meta, checked.files


@contextlib.contextmanager
def _readable(file: Path) -> Iterator[None]:
    """Turn what is raised for a damaged file into a CorpusError."""
    try:
        yield
    except (OSError, ValueError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())[:300]
        raise CorpusError(f"{file} cannot be read: {reason}", remedy=_AGAIN, path=str(file)) from error


def _table(file: Path, rows: Any, *arguments: Any, **options: Any) -> pa.Table:
    """Read rows of a file, and check their size, that texts are texts and that no value is missing that must be there.

    Raises:
        CorpusError: one of this is not so.
    """
    with _readable(file):
        scanner = rows.scanner(*arguments, **options, batch_size=_BATCH, batch_readahead=1, fragment_readahead=1)
        batches, size = [], 0
        for batch in scanner.to_batches():
            batches.append(batch)
            if (size := size + batch.nbytes) > _LARGEST_TABLE:
                raise ValueError(f"rows that belong together take over {_LARGEST_TABLE >> 20} MiB")
        table = pa.Table.from_batches(batches, scanner.projected_schema)
        table.validate(full=True)
        parts = [(name, table[name]) for name in table.column_names if not table.schema.field(name).nullable]
        for chunk in table["networks"].chunks if "networks" in table.column_names else ():
            network = chunk.flatten()
            parts += [("networks", part) for part in (network, *network.flatten())]
        if missing := next((name for name, values in parts if values.null_count), None):
            raise ValueError(f"it lacks values of the column {missing}")
    return table


def _open_table(file: Path, schema: pa.Schema) -> dataset.Dataset:
    """Open a table, which may lack the columns that may be null."""
    with _readable(file):
        columns = dataset.dataset(file, format="parquet").schema
    wrong = [
        field.name
        for field in schema
        if (columns.field(field.name).type != field.type if field.name in columns.names else not field.nullable)
    ]
    if wrong:
        problem = f"{file} lacks the column{'s' * (len(wrong) > 1)} {', '.join(wrong)} (or has another type)"
        raise CorpusError(problem, remedy=_AGAIN, path=str(file), columns=wrong)
    return dataset.dataset(file, schema, format="parquet")
