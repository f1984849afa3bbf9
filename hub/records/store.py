"""The store of measured programs: a paid measurement is on disk before the next one starts, and is never paid twice.

A home has one store, a run's folder another, both in an SQLite file of this form. A run's programs go to both.
"""

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from math import inf, isfinite
from pathlib import Path
from statistics import fmean, median
from typing import Any, Self

import msgspec

from ...zoo.errors import TchubError
from ...zoo.files import StorageError
from ..device.candidate import Candidate
from ..device.measure import Measurement, is_passing
from ..registry.store import home_root
from .scope import MeasurementScope

FILE = "records.sqlite"
FORMAT = 1
# Programs of a task that a run takes over from earlier runs at most, the fastest.
MOST_KNOWN = 256
# Strategies of programs that say nothing new to other runs: the task as extracted, and what an earlier run measured.
_OWN = ("untuned", "reused")
# Facts of a run that must not change between its parts.
_IDENTITY = ("network", "target", "model", "tasks", "device")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS scopes (scope TEXT PRIMARY KEY, facts TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS programs (
    scope TEXT NOT NULL, task_id TEXT NOT NULL, key TEXT NOT NULL, strategy TEXT NOT NULL, trace TEXT NOT NULL,
    args TEXT NOT NULL, latencies TEXT NOT NULL, mean REAL, error TEXT, message TEXT, build_seconds REAL NOT NULL,
    run_seconds REAL NOT NULL, measured_at REAL NOT NULL, predicted REAL, clock REAL NOT NULL,
    PRIMARY KEY (scope, task_id, key));
CREATE TABLE IF NOT EXISTS notes (scope TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL,
    PRIMARY KEY (scope, name));
CREATE TABLE IF NOT EXISTS workloads (task_id TEXT PRIMARY KEY, module TEXT NOT NULL);
"""
_TABLES = [table.strip() for table in _SCHEMA.split(";\n")[:-1]]
_COLUMNS = (
    "task_id, key, strategy, {trace}, args, latencies, error, message, build_seconds, run_seconds, measured_at, "
    "predicted, clock"
)


_Args = tuple[tuple[tuple[int, ...], str], ...]
_Text, _Score = str | None, float | None
_Row = tuple[str, str, str, str, str, str, _Text, _Text, float, float, float, _Score, float]


class RunStateError(TchubError):
    """Files of an earlier run do not fit this one, or are damaged. Field: path."""


@dataclass(frozen=True)
class MeasuredProgram:
    """A program with its measurement.

    Attributes:
        task_id, key, trace, args: as `Candidate`; the trace is empty where it was not asked for.
        strategy: `tune` for a candidate of a tuning run, `random` or `evolutionary` for one of a corpus, `untuned` for
            the task as extracted, `reused` for a program that an earlier run measured.
        predicted: the cost model's score before measuring; None where no model was asked.
        clock: tuning time spent when the result came, in seconds, summed over resumed runs.
    """

    task_id: str
    key: str
    strategy: str
    trace: str
    measurement: Measurement
    predicted: float | None = None
    clock: float = 0.0
    args: tuple[tuple[tuple[int, ...], str], ...] = ()

    @cached_property
    def latency(self) -> float:
        """Return the median of the repeats in seconds; infinite where the program failed, or a repeat is no time."""
        times = self.measurement.latencies
        if self.measurement.error is not None or not times or not all(isfinite(x) and x > 0 for x in times):
            return inf
        return median(times)

    @property
    def failure(self) -> str | None:
        """Return the error in one line, None for a valid program."""
        if self.measurement.error is None:
            return None if isfinite(self.latency) else "no valid time"
        return f"{self.measurement.error}: {self.measurement.message}"

    @property
    def passing(self) -> bool:
        """Return True for a failure that another day may spare the program, e.g. of a full disk."""
        measurement = self.measurement
        return measurement.error is not None and is_passing(f"{measurement.error}: {measurement.message}")


class RunStore(AbstractContextManager["RunStore"]):
    """Measured programs of one scope in an SQLite file, which several scopes may share.

    Each `put` is a transaction of its own, so `kill -9` loses only what was running.

    Args:
        path: the file; created with its folder when missing.
        scope: of the latencies; programs of another scope are never seen.
        home: takes each program as well, for later runs; closed with this store.

    Raises:
        StorageError: here and in all methods: the file cannot be used, or holds what is no store's.
    """

    def __init__(self, path: Path, scope: MeasurementScope, home: Self | None = None) -> None:
        self.path, self.scope, self.home = path, scope, home
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, timeout=60, check_same_thread=False)
        except (sqlite3.Error, OSError) as error:
            raise self._error(error) from error
        try:
            for statement in ("PRAGMA journal_mode=WAL", *_TABLES):
                self._write(statement)
            tables = {sql for (sql,) in self._rows("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")}
            if tables != {statement.replace(" IF NOT EXISTS", "") for statement in _TABLES}:
                raise self._error("it has other tables, views or triggers")  # which could run forever
            self._write("INSERT OR IGNORE INTO scopes VALUES (?, ?)", scope.key, json.dumps(scope.as_dict()))
        except StorageError:
            self._db.close()  # it may hold a lock
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file, and that of the home."""
        self._db.close()
        if self.home is not None:
            self.home.close()

    def put(
        self, candidate: Candidate, measurement: Measurement, *, predicted: float | None = None, clock: float = 0.0
    ) -> MeasuredProgram:
        """Keep a measurement, unless the program has one and this one failed; return the program without its trace."""
        times = measurement.latencies
        mean = fmean(times) if times and measurement.error is None else None
        row = (
            self.scope.key, candidate.task_id, candidate.key, candidate.strategy, candidate.trace,
            json.dumps(candidate.args_info), json.dumps(times), mean, measurement.error,
            measurement.message, measurement.build_seconds, measurement.run_seconds, measurement.measured_at,
            predicted, clock,
        )  # fmt: skip
        verb = "INSERT OR REPLACE" if measurement.error is None else "INSERT OR IGNORE"
        self._write(f"{verb} INTO programs VALUES ({', '.join('?' * len(row))})", *row)
        if self.home is not None and candidate.strategy not in _OWN:
            self.home.put(candidate, measurement)
        return MeasuredProgram(candidate.task_id, candidate.key, candidate.strategy, "", measurement, predicted, clock)

    def program(self, task_id: str, key: str) -> MeasuredProgram | None:
        """Return a program, or None."""
        return next(self._programs("task_id = ? AND key = ?", task_id, key), None)

    def get(self, task_id: str, key: str) -> Measurement | None:
        """Return the measurement of a program, or None."""
        program = self.program(task_id, key)
        return program and program.measurement

    def programs(self, task_id: str | None = None, *, traces: bool = True) -> Iterator[MeasuredProgram]:
        """Yield the programs of a task, or of all, as they were measured; `traces` are most of what is kept."""
        if task_id is None:
            return self._programs("1 ORDER BY rowid", traces=traces)
        return self._programs("task_id = ? ORDER BY rowid", task_id, traces=traces)

    def ranking(self, task_id: str) -> list[str]:
        """Return the keys of a task's valid programs, lowest mean latency first, the task as extracted left out."""
        where = "scope = ? AND task_id = ? AND mean IS NOT NULL AND strategy != 'untuned' ORDER BY mean, rowid"
        return [key for (key,) in self._rows(f"SELECT key FROM programs WHERE {where}", self.scope.key, task_id)]

    def known(self, task_id: str) -> list[MeasuredProgram]:
        """Return up to `MOST_KNOWN` programs of a task for a later run, fastest first, failures last.

        Failures of the moment are left out.
        """
        programs = [program for program in self.programs(task_id) if not program.passing]
        return sorted(programs, key=lambda program: (program.latency, program.key))[:MOST_KNOWN]

    def fastest(self) -> Iterator[MeasuredProgram]:
        """Yield the fastest program of each task in every scope that differs in weights and TVM version at most."""
        same = ("device", "cpu_model", "target", "threads")
        for key, facts in list(self._rows("SELECT scope, facts FROM scopes")):
            other = self._typed(facts, dict[str, Any])
            if all(other.get(name) == getattr(self.scope, name) for name in same):
                best = (
                    "rowid IN (SELECT id FROM (SELECT rowid AS id, MIN(mean) FROM programs WHERE scope = ? AND mean IS "
                    "NOT NULL AND strategy != 'untuned' GROUP BY task_id))"
                )
                yield from self._programs(best, key, scope=key)

    def forget_failure(self, task_id: str, key: str) -> None:
        """Measure a failed program anew; a valid measurement is never forgotten."""
        query = "DELETE FROM programs WHERE scope = ? AND task_id = ? AND key = ? AND error IS NOT NULL"
        self._write(query, self.scope.key, task_id, key)

    def __len__(self) -> int:
        ((count,),) = self._rows("SELECT COUNT(*) FROM programs WHERE scope = ?", self.scope.key)
        return int(count)

    def note(self, name: str, value: Any) -> None:
        """Keep a JSON-serialisable fact of the scope under a name; it is on disk when this returns."""
        self._write("INSERT OR REPLACE INTO notes VALUES (?, ?, ?)", self.scope.key, name, json.dumps(value))

    def noted(self, name: str, kind: Any = Any, *, scope: str | None = None) -> Any:
        """Return the fact that `note` kept, of a type that msgspec knows, or None."""
        where = self.scope.key if scope is None else scope
        rows = self._rows("SELECT value FROM notes WHERE scope = ? AND name = ?", where, name)
        return next((self._typed(value, kind) for (value,) in rows), None)

    def put_module(self, task_id: str, module: str) -> None:
        """Keep the text of a task's module."""
        self._write("INSERT OR IGNORE INTO workloads VALUES (?, ?)", task_id, module)

    def modules(self) -> dict[str, str]:
        """Return the texts of the modules that were kept, by task id."""
        rows = self._rows("SELECT task_id, module FROM workloads ORDER BY rowid")
        return dict(self._typed(row, tuple[str, str]) for row in rows)

    def claim(self, facts: Mapping[str, Any], *, resume: bool = True) -> bool:
        """Mark the folder as this run's; return True where it holds an earlier part of the same run.

        Args:
            facts: JSON-serialisable; network, target, model, tasks and device must not change between parts.
            resume: False refuses an earlier part.

        Raises:
            RunStateError: the folder is another run's, of a newer release, or not to be resumed.
        """
        folder = self.path.parent
        before = self.noted("run", dict[str, Any], scope="")
        if before is None:
            text = json.dumps({"format": FORMAT, **facts})
            self._write("INSERT INTO notes VALUES ('', 'run', ?)", text)
            return False
        problem, remedy = None, "choose another folder with --out, or delete this one"
        now = json.loads(json.dumps(dict(facts)))
        differing = [name for name in _IDENTITY if before.get(name) != now.get(name)]
        if before.get("format") != FORMAT:
            problem, remedy = f"was written by a newer release (format {before.get('format')})", "upgrade tchub"
        elif differing:
            was = str(before.get(differing[0]))
            problem = f"holds a run with another {differing[0]}: {was if len(was) < 80 else f'{was:.77}...'}"
        elif not resume:
            problem, remedy = "holds an earlier run", "choose another folder with --out, or resume it"
        if problem is not None:
            raise RunStateError(f"{folder} {problem}", remedy=remedy, path=str(folder), differing=differing)
        return True

    def _programs(
        self, where: str, *values: Any, traces: bool = True, scope: str | None = None
    ) -> Iterator[MeasuredProgram]:
        columns, scope = _COLUMNS.format(trace="trace" if traces else "''"), scope or self.scope.key
        for row in self._rows(f"SELECT {columns} FROM programs WHERE scope = ? AND {where}", scope, *values):
            facts = self._typed(row, _Row)
            task_id, key, strategy, trace, args, latencies, error, message, build, run, at, predicted, clock = facts
            measurement = Measurement(self._typed(latencies, tuple[float, ...]), error, message, build, run, at)
            infos = self._typed(args, _Args)
            yield MeasuredProgram(task_id, key, strategy, trace, measurement, predicted, clock, infos)

    def _rows(self, query: str, *values: Any) -> Iterator[tuple[Any, ...]]:
        try:
            for row in self._db.execute(query, values):  # noqa: UP028 (`yield from` would close the cursor of a closed file)
                yield row
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter for names that are no texts
            raise self._error(error) from error

    def _write(self, query: str, *values: Any) -> None:
        try:
            with self._db:
                self._db.execute(query, values)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self._error(error) from error

    def _typed(self, value: Any, kind: Any) -> Any:
        """Return a row, or the value of a cell of JSON, of a type; infinity is a time of a program that did not run."""
        try:
            return msgspec.convert(json.loads(value) if isinstance(value, str) else value, kind)
        except (ValueError, RecursionError) as error:
            raise self._error(error) from error

    def _error(self, error: Exception | str) -> StorageError:
        return StorageError(
            f"the records in {self.path} cannot be used: {error}",
            remedy="free some disk space, then run the same command again, or choose another folder with --out; "
            "what was measured before is kept",
            path=str(self.path),
        )


def home_file() -> Path:
    """Return the path of the store of all runs of this user."""
    return home_root().parent / FILE


def open_store(folder: Path, scope: MeasurementScope, *, share: bool = True) -> RunStore:
    """Open the store of a run's folder; where `share`, its programs are kept in the home, too, for later runs."""
    return RunStore(folder / FILE, scope, RunStore(home_file(), scope) if share else None)
