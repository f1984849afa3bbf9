"""What every importer gives: measured programs one by one, and lines that could not be read.

An importer is a function `(path, ImportContext) -> Iterator[Entry | Broken]`. It streams: what it holds in
memory grows with the number of tasks, never with the number of programs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..schema import Program, Task

ERRORS: Mapping[int, tuple[str, str]] = {
    1: ("invalid", "the steps or knobs could not be applied, or a check of GPU code rejected them"),
    2: ("build", "compiling for the host failed"),
    3: ("build", "compiling for the device failed"),
    4: ("run", "the run failed"),
    5: ("invalid", "the result was wrong"),
    6: ("build_timeout", "the build took too long"),
    7: ("run_timeout", "the run took too long"),
    8: ("crash", "unknown error"),
}
"""Error number of Ansor and AutoTVM -> (one of `schema.ERROR_KINDS`, what it means)."""

MISSHAPEN = (TypeError, ValueError, LookupError, AttributeError, OverflowError, RecursionError)
"""What Python raises where a value of a log is of another form than every record that the tools themselves write."""


class BadRecordError(Exception):
    """Why a record is broken, inside an importer: `Broken`'s kind and message."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind

    def at(self, where: str) -> Broken:
        """What is reported of it."""
        return Broken(self.kind, where, str(self))


@dataclass(frozen=True, slots=True)
class Entry:
    """One measured program of a foreign log.

    Attributes:
        task: its task; the same object for every program of a task.
        program: with `task_id` of that task and `primitives` told.
        spelling: the task as this record's workload spells it, where a log may spell one task in several ways;
            `task.workload` is the spelling met first.
    """

    task: Task
    program: Program
    spelling: str | None = None


@dataclass(frozen=True, slots=True)
class Broken:
    """A line (or record) that cannot be read; it is counted and reported, never fatal.

    Attributes:
        kind: what is wrong, a word of a small fixed set: `not-json`, `wrong-shape`, `unknown-step`, ...
        where: `file:line`.
        message: in one line.
    """

    kind: str
    where: str
    message: str


@dataclass(frozen=True, slots=True)
class ImportContext:
    """What the person who imports says about the log.

    Attributes:
        device: name of the device that all programs were measured on.
        licence, source: of the log, kept with every program.
        facts: what a task file tells of a task, by its workload key: any of `name`, `op`, `flops`, `networks`.
        allow_mixed: whether records of several devices in one log are taken as told, not refused.
    """

    device: str
    licence: str | None = None
    source: str | None = None
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    allow_mixed: bool = False
