"""A log line by line: what cannot be read is told of, and the lines around it are read all the same."""

from __future__ import annotations

import gzip
import json
import lzma
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from ..schema import Program, Task, UnknownLogError

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


_OPENERS: dict[str, Any] = {".xz": lzma.open, ".gz": gzip.open}
PACKED_ERRORS = (OSError, EOFError, lzma.LZMAError)
SUFFIXES = tuple(end + packed for packed in ("", *_OPENERS) for end in (".json", ".jsonl", ".log"))
"""How the names of logs end."""
LONGEST_LINE = 16 << 20
"""Characters; a record has some thousands, a module in a database up to a million."""
# JSON spells a character beyond 16 bits as two halves, e.g. `\ud83d\ude00`.
_HALF = re.compile(r"\\u[dD][89a-fA-F]")
_LOOK = 20  # lines that are looked at before a file is nobody's


def open_text(file: Path) -> IO[str]:
    """Open a text file, unpacking `.xz` and `.gz`; bytes that are no UTF-8 become marks."""
    return cast("IO[str]", _OPENERS.get(file.suffix, open)(file, "rt", encoding="utf-8", errors="replace"))


@contextmanager
def open_lines(file: Path) -> Iterator[Iterator[str]]:
    """The lines of a text file, unpacked; one that is longer than any record comes in pieces, which are none.

    A packed file of some kilobytes may hold a line of gigabytes.
    """
    with open_text(file) as text:
        yield iter(lambda: text.readline(LONGEST_LINE), "")


def check_texts(text: str) -> None:
    """Raises ValueError where JSON holds half a character, which no file and no hash takes."""
    if _HALF.search(text):
        try:
            json.dumps(json.loads(text), ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = f"{ord(error.object[error.start]):04x}"
            raise ValueError(f"a text holds half a character, \\u{half}") from None


def find_packed(folder: Path, name: str) -> Path | None:
    """The file of this name in a folder, or its packed form."""
    return next((f for end in ("", *_OPENERS) if (f := folder / (name + end)).is_file()), None)


def find_logs(path: Path) -> list[Path]:
    """The file itself, or the logs below a folder in the order of their names.

    Raises:
        UnknownLogError: there is no such file, or no log below the folder.
    """
    files = [path] if path.is_file() else [f for f in path.rglob("*") if f.is_file() and f.name.endswith(SUFFIXES)]
    if not files:
        raise UnknownLogError(
            f"there is no log at {path}",
            remedy=f"name a log, or a folder that holds files whose names end in {', '.join(SUFFIXES)}",
            path=str(path),
        )
    return sorted(files)


def sniff_framework(source: Path | str) -> str:
    """Whose log this is, told from its first lines.

    Raises:
        UnknownLogError: none of `FRAMEWORKS` writes such lines.
    """
    path = Path(source)
    if path.is_dir() and find_packed(path, "database_tuning_record.json"):
        return "metaschedule"
    files = sorted(f for f in path.rglob("*") if f.is_file()) if path.is_dir() else [path]
    for file in files:
        for line in _first_lines(file):
            if told := _framework_of(line):
                return told
    raise UnknownLogError(
        f"{source} is no tuning log of Ansor, AutoTVM or MetaSchedule",
        remedy="name a log file, a folder of logs, or a folder with database_tuning_record.json and "
        "database_workload.json; or say --framework",
        path=str(source),
    )


def _first_lines(file: Path) -> Iterator[str]:
    try:
        with open_lines(file) as lines:
            for _, line in zip(range(_LOOK), lines, strict=False):
                yield line
    except PACKED_ERRORS as error:
        if not file.exists():
            raise UnknownLogError(f"there is no {file}", remedy="check the path", path=str(file)) from error


def _framework_of(line: str) -> str | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if isinstance(record, dict):
        words = {"ansor": {"i", "r"}, "autotvm": {"input", "config", "result"}}
        return next((name for name, keys in words.items() if keys <= record.keys()), None)
    return None


def read_records(file: Path, read: Callable[[str, str], Entry]) -> Iterator[Entry | Broken]:
    """What becomes of each line that is not empty; of the rest of a damaged file, one `not-readable`.

    Args:
        file: packed or not.
        read: makes an entry of a line and its place, `file:line`; raises BadRecordError, or one of `MISSHAPEN`.
    """
    where = file.name
    try:
        with open_lines(file) as lines:
            for number, line in enumerate(lines, 1):
                where = f"{file.name}:{number}"
                if line.strip():
                    yield _one(read, line, where)
    except PACKED_ERRORS as error:
        yield Broken("not-readable", where, f"nothing can be read after this line: {error}")


def _one(read: Callable[[str, str], Entry], line: str, where: str) -> Entry | Broken:
    try:
        entry = read(line, where)
        check_texts(line)
        return entry
    except BadRecordError as bad:
        return bad.at(where)
    except MISSHAPEN as error:
        return Broken("wrong-shape", where, f"it holds what no record does: {error!r:.200}")
