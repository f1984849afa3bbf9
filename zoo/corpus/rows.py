"""Programs on their way into row groups: they wait by task, in bounded memory, then on disk in small batches."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from .schema import PROGRAMS_SCHEMA, Program

# A row group holds programs of one task, so that a reader of the task touches its pages only.
GROUP_ROWS = 8192
# Bytes of the programs that wait, over all tasks.
BUFFER_BYTES = 96 << 20
# What a waiting program takes besides its texts.
_ROW_BYTES = 1500


class Waiting:
    """Programs by task, handed to `write` a task at a time: when it fills a row group, or memory is short."""

    def __init__(
        self, write: Callable[[list[Program]], None], rows: int = GROUP_ROWS, limit: int = BUFFER_BYTES
    ) -> None:
        """`rows` programs fill a row group; `limit` bytes may wait, then the largest task goes."""
        self._write, self._rows, self._limit = write, rows, limit
        self._programs: dict[str, list[Program]] = {}
        self._bytes: dict[str, int] = {}
        self._total = 0

    def add(self, program: Program) -> None:
        """Let a program wait."""
        size = len(program.trace) + len(program.primitives or "") + _ROW_BYTES
        waiting = self._programs.setdefault(program.task_id, [])
        waiting.append(program)
        self._bytes[program.task_id] = self._bytes.get(program.task_id, 0) + size
        self._total += size
        if len(waiting) >= self._rows:
            self._hand_on(program.task_id)
        elif self._total > self._limit:
            self._hand_on(max(self._bytes, key=self._bytes.__getitem__))

    def discard(self, task_id: str) -> None:
        """Forget what waits of a task."""
        self._programs.pop(task_id, None)
        self._total -= self._bytes.pop(task_id, 0)

    def finish(self) -> None:
        """Hand on all that waits, in the order of the task ids."""
        for task_id in sorted(self._programs):
            self._hand_on(task_id)

    def _hand_on(self, task_id: str) -> None:
        programs = self._programs[task_id]
        self.discard(task_id)
        self._write(programs)


class Spill:
    """Batches of one task each in a scratch file, from which a task's programs are gathered in the end.

    A log that interleaves thousands of tasks gives batches of a few programs; as row groups they would make
    every reader slow.
    """

    def __init__(self, file: Path, cleanup: contextlib.ExitStack) -> None:
        """`cleanup` closes and removes the file."""
        self._file = file
        cleanup.callback(file.unlink, missing_ok=True)
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        self._writer = pa.ipc.new_file(str(file), PROGRAMS_SCHEMA, options=options)
        cleanup.callback(self._writer.close)
        self._of_task: dict[str, list[int]] = {}
        self._count = 0

    def write(self, programs: list[Program]) -> None:
        """Add programs of one task."""
        columns = {name: [getattr(program, name) for program in programs] for name in PROGRAMS_SCHEMA.names}
        self._writer.write_batch(pa.record_batch(columns, schema=PROGRAMS_SCHEMA))
        self._of_task.setdefault(programs[0].task_id, []).append(self._count)
        self._count += 1

    def discard(self, task_id: str) -> None:
        """Forget a task."""
        self._of_task.pop(task_id, None)

    def groups(self, superseded: Mapping[str, Collection[str]], rows: int = GROUP_ROWS) -> Iterator[pa.Table]:
        """All programs by task id, about `rows` of one task at a time, sorted by key; nothing can be added after.

        Failed programs whose key is among the `superseded` of their task are left out.
        """
        self._writer.close()
        # Not memory-mapped: what was read would count as resident until the end.
        with pa.OSFile(str(self._file)) as source, pa.ipc.open_file(source) as reader:
            for task_id in sorted(self._of_task):
                batches: list[pa.RecordBatch] = []
                for index in self._of_task[task_id]:
                    batches.append(_without_failed(reader.get_batch(index), superseded.get(task_id, ())))
                    if sum(batch.num_rows for batch in batches) >= rows:
                        yield pa.Table.from_batches(batches).sort_by("key")
                        batches = []
                if batches:
                    yield pa.Table.from_batches(batches).sort_by("key")


def _without_failed(batch: pa.RecordBatch, keys: Collection[str]) -> pa.RecordBatch:
    if not keys:
        return batch
    return batch.filter((~pc.field("key").isin(list(keys))) | pc.field("error").is_null())
