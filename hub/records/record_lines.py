"""The lines of a MetaSchedule database's two files, read one by one: nothing is replayed, nothing is kept.

`database_workload.json` has a line a workload, `[hash, module]`; `database_tuning_record.json` a line a record,
`[workload's line, [trace, seconds, target, arguments]]`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import RunStateError

WORKLOADS, RECORDS = "database_workload.json", "database_tuning_record.json"
# MetaSchedule's mark for a program that did not run.
FAILED_SECONDS = 1e10


@dataclass(frozen=True, slots=True)
class StoredProgram:
    """A measured program as its line says it.

    Attributes:
        offset: where its line begins in the file, in bytes.
        workload: the line of its workload.
        trace: `[instructions, decisions]`.
        seconds: the repeats; `FAILED_SECONDS` where it did not run.
    """

    offset: int
    workload: int
    trace: list[Any]
    seconds: tuple[float, ...]

    @property
    def mean(self) -> float:
        """By what MetaSchedule ranks, in seconds."""
        return sum(self.seconds) / len(self.seconds) if self.seconds else FAILED_SECONDS

    @property
    def valid(self) -> bool:
        """Whether MetaSchedule would offer it: it ran, and it is not the task as extracted."""
        instructions = self.trace[0]
        scheduled = bool(instructions) and instructions[0][0] != "EnterPostproc"
        return scheduled and any(x != FAILED_SECONDS for x in self.seconds)


def read_lines(path: Path) -> Iterator[Any]:
    """The values of a file's lines.

    Raises:
        RunStateError: one is not JSON.
    """
    if path.exists():
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                yield _loaded(path, number, line)


def read_programs(path: Path, workload: int | None = None) -> Iterator[StoredProgram]:
    """The records of a file in the order in which they were measured.

    Args:
        workload: records of this workload alone; lines of others are not read beyond its number.

    Raises:
        RunStateError: a line is no record.
    """
    if not path.exists():
        return
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if workload is None or line.startswith(b"[%d," % workload):
                yield _program(path, number, offset, _loaded(path, number, line))
            offset += len(line)


def read_record(path: Path, offset: int) -> Any:
    """The `[trace, seconds, target, arguments]` of the line that begins at `offset`."""
    with path.open("rb") as file:
        file.seek(offset)
        return json.loads(file.readline())[1]


def _program(path: Path, number: int, offset: int, value: Any) -> StoredProgram:
    try:
        workload, (trace, seconds, _, _) = value
        return StoredProgram(offset, int(workload), trace, tuple(map(float, seconds or ())))
    except (TypeError, ValueError) as error:
        raise _damaged(path, number, error) from error


def _loaded(path: Path, number: int, line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise _damaged(path, number, error) from error


def _damaged(path: Path, number: int, error: Exception) -> RunStateError:
    return RunStateError(
        f"{path}, line {number}, is not what MetaSchedule writes: {error}",
        remedy="choose a new output folder, or remove that line",
        path=str(path),
        line=number,
    )
