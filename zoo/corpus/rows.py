"""Programs on their way into row groups: they wait by task, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable

from .schema import Program

# A row group holds programs of one task, so that a reader of the task touches its pages only.
GROUP_ROWS = 8192
# Bytes of the programs that wait, over all tasks.
BUFFER_BYTES = 96 << 20
# What a waiting program takes besides its texts.
_ROW_BYTES = 1500


class Waiting:
    """Programs by task, handed to `write` a task at a time: when it fills a row group, or memory is short.

    Attributes:
        written: ids of the tasks of which something was handed on.
    """

    def __init__(
        self, write: Callable[[list[Program]], None], rows: int = GROUP_ROWS, limit: int = BUFFER_BYTES
    ) -> None:
        """`rows` programs fill a row group; `limit` bytes may wait, then the largest task goes."""
        self._write, self._rows, self._limit = write, rows, limit
        self._programs: dict[str, list[Program]] = {}
        self._bytes: dict[str, int] = {}
        self._total = 0
        self.written: set[str] = set()

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
        self._write(sorted(programs, key=lambda program: program.key))
        self.written.add(task_id)
