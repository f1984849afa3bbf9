"""Logs of other tools line by line: measured programs one by one, and lines that could not be read.

An importer is a function `(file, name, ImportContext) -> LineReader` for one log, named where there are several. What
it holds in memory grows with the number of tasks, never with the number of programs.
"""

import gzip
import hashlib
import io
import json
import lzma
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from statistics import median
from typing import IO, Any, TypeVar, cast

import msgspec
import pyarrow as pa

from ...features.columns import OPS
from ..schema import FRAMEWORKS, LONGEST, CorpusError, Program, Task

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
"""Error number of Ansor and AutoTVM -> (one of `schema.ERROR_KINDS`, its meaning)."""
LineReader = Callable[[str], tuple[Task, dict[str, Any]]]
"""A line's task, and the columns that are its program's own; raises BadLine, or one of `MISSHAPEN`."""
MISSHAPEN = (TypeError, ValueError, LookupError, AttributeError, OverflowError, RecursionError)
"""Errors of Python where a value of a log is of another form than every record that the tools themselves write."""


def _open_zstandard(file: Path, _mode: str, **how: Any) -> IO[str]:
    return io.TextIOWrapper(pa.input_stream(file, compression="zstd"), **how)  # type: ignore[arg-type]


_OPENERS: dict[str, Any] = {".xz": lzma.open, ".gz": gzip.open, ".zst": _open_zstandard}
PACKED_ERRORS = (OSError, EOFError, lzma.LZMAError)
SUFFIXES = tuple(end + packed for packed in ("", *_OPENERS) for end in (".json", ".jsonl", ".log"))
"""Endings of the names of logs."""
LONGEST_LINE = 16 << 20
"""Characters; a record has some thousands, a module in a database up to a million."""
# What a packed log may unpack to: so many characters, and so many for each of its bytes. Real logs have 6 to 172.
_LEAST, _RATIO = 64 << 20, 1000
DATABASE = "database_tuning_record.json", "database_workload.json"
"""The files of a MetaSchedule database: records, and the workloads that they name."""
_BESIDE = re.compile(r"(tasks|splits|workload_tvmscript|.*_workload)\.json")  # files that say more about a log
_LOOK = 20  # lines to look at before a file is nobody's
# A line of a framework's log is an object with these keys, or for MetaSchedule a list: [workload, [trace, ...]] of a
# database, [trace, target, latency] of others.
_KEYS = {"ansor": {"i", "r"}, "autotvm": {"input", "config", "result"}, "metaschedule": {"trace", "target", "latency"}}
_Form = TypeVar("_Form")


class BadLine(Exception):  # counted and reported, no failure of the import
    """A broken line (or record), which cannot be read: readers raise it, `read_records` yields it.

    Attributes:
        kind: a word of a small fixed set: `not-json`, `wrong-shape`, `unknown-step`, ...
        message: one line; where: `file:line`.
    """

    def __init__(self, kind: str, message: str, where: str = "") -> None:
        super().__init__(message)
        self.kind, self.message, self.where = kind, message, where


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One measured program of a foreign log, with its `primitives`, and its task as this record spells it."""

    task: Task
    program: Program


class TaskFacts(msgspec.Struct, frozen=True):
    """Facts about a task from a file beside the log; None where the log itself decides."""

    name: str | None = None
    op: str | None = None
    flops: float | None = None
    networks: tuple[tuple[str, int], ...] = ()

    def task(self, identity: str, workload: str, computation: str, name: str, op: str, flops: float) -> Task:
        """Return the task of a hash; name, operator and operations are the log's where the facts leave them open."""
        # A task file may know less than the log: "sub-graph" for a convolution.
        op, flops = self.op if self.op in OPS else op, flops if self.flops is None else self.flops
        return Task(digest(identity), self.name or name, op, flops, workload, computation, self.networks)


@dataclass(frozen=True, slots=True)
class ImportContext:
    """Facts about the log from the person who imports it.

    Attributes:
        device: name of the device that all programs were measured on.
        licence, source: of the log, kept with every program.
        facts: of tasks, by workload key in its `canonical` spelling.
        allow_mixed: whether records of several devices in one log are taken, not refused.
    """

    device: str
    licence: str | None = None
    source: str | None = None
    facts: Mapping[str, TaskFacts] = field(default_factory=dict)
    allow_mixed: bool = False


# Lines ---------------------------------------------------------------------------------------------------


def read_records(file: Path, framework: str, read: LineReader, context: ImportContext) -> Iterator[LogEntry | BadLine]:
    """Yield an entry of each line that is not empty, or why there is none; `not-readable` for a damaged rest."""
    common = {"framework": framework, "strategy": "tuned", "device": context.device, "licence": context.licence}
    source, where = context.source or file.name, file.name
    try:
        with open_lines(file) as lines:
            for number, line in enumerate(lines, 1):
                where = f"{file.name}:{number}"
                if not line.strip():
                    continue
                try:
                    task, columns = read(line)
                except BadLine as broken:
                    yield BadLine(broken.kind, broken.message, where)
                except MISSHAPEN as error:
                    yield BadLine("wrong-shape", f"it holds what no record does: {error!r:.200}", where)
                else:
                    yield LogEntry(task, Program(task_id=task.task_id, source=source, **common, **columns))
    except PACKED_ERRORS as error:
        yield BadLine("not-readable", f"nothing can be read after this line: {error}", where)


def decode(line: str, form: type[_Form]) -> _Form:
    """Return a line as the struct of its framework's records; raises BadLine."""
    try:
        return msgspec.json.decode(line, type=form)
    except msgspec.ValidationError as error:
        raise BadLine("wrong-shape", f"not a record of this framework: {error}") from None
    except (ValueError, RecursionError) as error:
        raise BadLine("not-json", str(error)) from None


def compact(value: Any) -> str:
    """Return a value as JSON without spaces."""
    return json.dumps(value, separators=(",", ":"))


def canonical(workload: Any) -> str:
    """Return a workload key in one spelling: compact JSON where it is JSON or the value of one."""
    try:
        return compact(msgspec.json.decode(workload) if isinstance(workload, str) else workload)
    except (ValueError, RecursionError):
        return workload


def digest(text: str) -> str:
    """Return 16 hex digits of a text's hash, by which tasks and programs are named."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class MeasureResult(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """The measurement in a record of Ansor or AutoTVM: costs in seconds (or messages), error number, times in s."""

    costs: list[Any]
    error: int
    spent: float
    time: float

    def columns(self, sentinel: float) -> dict[str, Any]:
        """Return the columns of a program's measurement; `sentinel` as for `latencies`."""
        number = self.error
        if number and number not in ERRORS:
            raise BadLine("bad-result", f"{number!r:.40} is no error number")
        seconds = () if number else latencies(self.costs, sentinel)
        return timed(seconds, *ERRORS[number or 8]) | {"measured_at": self.time, "cost_seconds": self.spent}


def timed(seconds: tuple[float, ...], error: str, message: str) -> dict[str, Any]:
    """Return the columns of a program's latencies; of its error where it has none."""
    error_columns = {} if seconds else {"error": error, "error_message": message}
    return {"latencies": seconds, "latency": median(seconds) if seconds else math.nan, **error_columns}


def latencies(costs: Any, sentinel: float) -> tuple[float, ...]:
    """Return the repeats of a program in seconds; none where its framework wrote `sentinel`, for one that failed."""
    try:
        seconds = msgspec.convert(costs, tuple[float, ...])
    except (msgspec.ValidationError, OverflowError):
        seconds = ()
    if not seconds or not all(0 < cost <= LONGEST or cost >= sentinel for cost in seconds):
        raise BadLine("bad-result", f"no latencies: {costs!r:.80}")
    return () if max(seconds) >= sentinel else seconds


# Files ---------------------------------------------------------------------------------------------------


def open_text(file: Path) -> IO[str]:
    """Open a text file, unpacking `.xz`, `.gz` and `.zst`; bytes that are no UTF-8 become replacement characters."""
    return cast("IO[str]", _OPENERS.get(file.suffix, open)(file, "rt", encoding="utf-8", errors="replace"))


@contextmanager
def open_lines(file: Path) -> Iterator[Iterator[str]]:
    """Open the lines of a text file, unpacked; one that is longer than any record comes in pieces, which are none.

    A packed file of some kilobytes may hold gigabytes, as one line or many: OSError where it unpacks to too many.
    """

    def lines(text: IO[str]) -> Iterator[str]:
        left = _LEAST + _RATIO * file.stat().st_size
        while line := text.readline(LONGEST_LINE):
            left -= len(line)
            if left < 0:
                raise OSError("it unpacks to more than a log of its size does")
            yield line

    with open_text(file) as text:
        yield lines(text)


def find_packed(folder: Path, name: str) -> Path | None:
    """Return the file of this name in a folder, or its packed form."""
    return next((f for end in ("", *_OPENERS) if (f := folder / (name + end)).is_file()), None)


def find_logs(path: Path) -> list[Path]:
    """Return the file itself, or the logs below a folder in the order of their names.

    Raises:
        CorpusError: there is no such file, or no log below the folder.
    """
    files = [path]
    if not path.is_file():
        files = [f for f in path.rglob("*") if f.name.endswith(SUFFIXES) and not _BESIDE.match(f.name) and f.is_file()]
    if not files:
        raise CorpusError(
            f"there is no log at {path}",
            remedy=f"name a log, or a folder that holds files whose names end in {', '.join(SUFFIXES)}",
            path=str(path),
        )
    return sorted(files)


def sniff_framework(source: Path | str) -> str:
    """Return the framework that wrote a log, by its first lines.

    Raises:
        CorpusError: there is no log, or none of `FRAMEWORKS` writes such lines.
    """
    for file in find_logs(Path(source)):
        with suppress(*PACKED_ERRORS), open_lines(file) as lines:
            for line in islice(lines, _LOOK):
                with suppress(BadLine):
                    match decode(line, object):
                        case [int(), [_, _, _, _]] | [[_, _], _, _]:
                            return "metaschedule"
                        case dict() as record if names := [n for n, keys in _KEYS.items() if keys <= record.keys()]:
                            return names[0]
    raise CorpusError(
        f"{source} is no tuning log of {', '.join(FRAMEWORKS)}",
        remedy=f"name a log file, a folder of logs, or a folder with {DATABASE[0]}; or say --framework",
        path=str(source),
    )
