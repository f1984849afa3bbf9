"""Programs on their way into row groups: they wait by task, in bounded memory, then on disk in small batches.

A log that interleaves thousands of tasks gives batches of a few programs; as row groups they would make every reader
slow. So they are gathered by task in the end, and of programs with one key the best is kept.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from .schema import PROGRAMS_SCHEMA, Program

# A row group holds programs of one task, so that a reader of the task touches its pages only.
GROUP_ROWS = 8192
# Bytes of the programs that wait in memory, over all tasks.
BUFFER_BYTES = 96 << 20
# Bytes that a waiting program takes besides its texts.
_ROW_BYTES = 1500


@dataclass(frozen=True)
class TaskPrograms:
    """The programs of a task that are kept.

    Attributes:
        valid: how many have a latency.
        failed: the others by kind of error.
        duplicates: programs left out because another one has their key.
    """

    valid: int
    failed: Counter[str]
    duplicates: int

    @property
    def total(self) -> int:
        """Return how many programs are kept."""
        return self.valid + self.failed.total()


class Spill:
    """Programs by task, in any order and number, in a scratch file."""

    def __init__(self, file: Path, cleanup: contextlib.ExitStack) -> None:
        """`cleanup` closes and removes the file."""
        self._file = file
        cleanup.callback(file.unlink, missing_ok=True)
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        self._writer = pa.ipc.new_file(str(file), PROGRAMS_SCHEMA, options=options)
        cleanup.callback(self._writer.close)
        self._waiting: dict[str, list[Program]] = {}
        self._bytes: Counter[str] = Counter()
        self._batches: dict[str, list[int]] = {}
        self._written = 0
        self._kept: dict[str, np.ndarray] = {}

    def add(self, program: Program) -> None:
        """Add a program; write those of a task when they fill a row group, or when memory is short."""
        waiting = self._waiting.setdefault(program.task_id, [])
        waiting.append(program)
        self._bytes[program.task_id] += len(program.trace) + len(program.primitives or "") + _ROW_BYTES
        if len(waiting) >= GROUP_ROWS:
            self._write(program.task_id)
        elif self._bytes.total() > BUFFER_BYTES:
            self._write(max(self._bytes, key=self._bytes.__getitem__))

    def _write(self, task_id: str) -> None:
        programs = self._waiting.pop(task_id)
        del self._bytes[task_id]
        columns = {name: [getattr(program, name) for program in programs] for name in PROGRAMS_SCHEMA.names}
        self._writer.write_batch(pa.record_batch(columns, schema=PROGRAMS_SCHEMA))
        self._batches.setdefault(task_id, []).append(self._written)
        self._written += 1

    def choose(self) -> dict[str, TaskPrograms]:
        """Choose the programs to keep, by task; nothing can be added after.

        Of programs with one key, the first that has a latency stays: the fastest of several measurements of a
        program would be too fast. A failed one stays where none has a latency.
        """
        for task_id in sorted(self._waiting):
            self._write(task_id)
        self._writer.close()
        columns = [PROGRAMS_SCHEMA.names.index(name) for name in ("key", "error")]
        with self._open(pa.ipc.IpcReadOptions(included_fields=columns)) as reader:
            return {task_id: self._choose(task_id, reader) for task_id in sorted(self._batches)}

    def _choose(self, task_id: str, reader: pa.RecordBatchFileReader) -> TaskPrograms:
        keys: list[str] = []
        errors: list[str | None] = []
        for index in self._batches[task_id]:
            batch = reader.get_batch(index)
            keys += batch["key"].to_pylist()
            errors += batch["error"].to_pylist()
        chosen: dict[str, int] = {}
        for row, key in enumerate(keys):
            if errors[chosen.setdefault(key, row)] is not None and errors[row] is None:
                chosen[key] = row
        kept = self._kept[task_id] = np.zeros(len(keys), bool)
        kept[list(chosen.values())] = True
        failed = Counter(error for row in chosen.values() if (error := errors[row]) is not None)
        return TaskPrograms(len(chosen) - failed.total(), failed, len(keys) - len(chosen))

    def discard(self, task_id: str) -> None:
        """Leave out a task."""
        self._batches.pop(task_id, None)

    def groups(self) -> Iterator[pa.Table]:
        """Yield the chosen programs by task id, about `GROUP_ROWS` of one task at a time, sorted by key."""
        with self._open(pa.ipc.IpcReadOptions()) as reader:
            for task_id in sorted(self._batches):
                batches: list[pa.RecordBatch] = []
                start = 0
                for index in self._batches[task_id]:
                    batch = reader.get_batch(index)
                    batches.append(batch.filter(pa.array(self._kept[task_id][start : start + batch.num_rows])))
                    start += batch.num_rows
                    if sum(batch.num_rows for batch in batches) >= GROUP_ROWS:
                        yield pa.Table.from_batches(batches).sort_by("key")
                        batches = []
                if sum(batch.num_rows for batch in batches):
                    yield pa.Table.from_batches(batches).sort_by("key")

    @contextlib.contextmanager
    def _open(self, options: pa.ipc.IpcReadOptions) -> Iterator[pa.RecordBatchFileReader]:
        # Not memory-mapped: what was read would count as resident until the end.
        with pa.OSFile(str(self._file)) as source, pa.ipc.open_file(source, options=options) as reader:
            yield reader
