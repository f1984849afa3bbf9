"""The measurement journal: a paid measurement is on disk before the next one starts, and is never paid twice."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...zoo.files import StorageError
from ..device.measure import Measurement

if TYPE_CHECKING:
    from ..device.candidate import Candidate

_SCHEMA = """
CREATE TABLE IF NOT EXISTS scopes (scope TEXT PRIMARY KEY, facts TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS measurements (
    scope TEXT NOT NULL, task_id TEXT NOT NULL, key TEXT NOT NULL, strategy TEXT NOT NULL, trace TEXT NOT NULL,
    latencies TEXT NOT NULL, error TEXT, message TEXT, build_seconds REAL NOT NULL, run_seconds REAL NOT NULL,
    measured_at REAL NOT NULL, PRIMARY KEY (scope, task_id, key));
CREATE TABLE IF NOT EXISTS notes (scope TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL,
    PRIMARY KEY (scope, name));
"""
_COLUMNS = "task_id, key, strategy, trace, latencies, error, message, build_seconds, run_seconds, measured_at"


@dataclass(frozen=True)
class Entry:
    """One journaled program and its measurement."""

    task_id: str
    key: str
    strategy: str
    trace: str
    measurement: Measurement


class Journal:
    """Measurements of one scope in an SQLite file, which several scopes may share.

    A scope is everything that must be equal before two latencies may be compared: device, CPU model, target,
    threads and TVM version. Each `put` is a transaction of its own, so `kill -9` loses only what was running.

    Args:
        path: the file; created with its folder when missing.
        scope: the facts that name the scope, JSON-serialisable.

    Raises:
        StorageError: the file cannot be opened or written.
    """

    def __init__(self, path: Path | str, scope: Mapping[str, Any]) -> None:
        self.path = Path(path)
        facts = json.dumps(scope, sort_keys=True)
        self.scope = hashlib.sha256(facts.encode()).hexdigest()[:16]
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(self.path, timeout=60, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.executescript(_SCHEMA)
            with self._db:
                self._db.execute("INSERT OR IGNORE INTO scopes VALUES (?, ?)", (self.scope, facts))
        except (sqlite3.Error, OSError) as error:
            raise self._failed(error) from error

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _failed(self, error: Exception) -> StorageError:
        return StorageError(
            f"the journal {self.path} cannot be used: {error}",
            remedy="free some disk space or choose another folder; what was measured before is kept",
            path=str(self.path),
        )

    def put(self, candidate: Candidate, measurement: Measurement) -> None:
        """Record a measurement; a later one of the same program replaces it only if it succeeded."""
        row = (
            self.scope, candidate.task_id, candidate.key, candidate.strategy, candidate.trace,
            json.dumps(measurement.latencies), measurement.error, measurement.message,
            measurement.build_seconds, measurement.run_seconds, measurement.measured_at,
        )  # fmt: skip
        verb = "INSERT OR REPLACE" if measurement.error is None else "INSERT OR IGNORE"
        try:
            with self._db:
                self._db.execute(f"{verb} INTO measurements VALUES ({', '.join('?' * len(row))})", row)
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def forget_failure(self, task_id: str, key: str) -> None:
        """Measure a program anew that failed; a measurement is never forgotten."""
        query = "DELETE FROM measurements WHERE scope = ? AND task_id = ? AND key = ? AND error IS NOT NULL"
        try:
            with self._db:
                self._db.execute(query, (self.scope, task_id, key))
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def get(self, task_id: str, key: str) -> Measurement | None:
        """The measurement of a program, or None."""
        query = f"SELECT {_COLUMNS} FROM measurements WHERE scope = ? AND task_id = ? AND key = ?"
        row = next(self._rows(query, task_id, key), None)
        return None if row is None else _entry(row).measurement

    def of_task(self, task_id: str) -> list[Entry]:
        """All journaled programs of a task, oldest first."""
        query = f"SELECT {_COLUMNS} FROM measurements WHERE scope = ? AND task_id = ? ORDER BY measured_at"
        return [_entry(row) for row in self._rows(query, task_id)]

    def entries(self) -> Iterator[Entry]:
        """All journaled programs of the scope, task by task."""
        query = f"SELECT {_COLUMNS} FROM measurements WHERE scope = ? ORDER BY task_id, measured_at"
        yield from map(_entry, self._rows(query))

    def __len__(self) -> int:
        ((count,),) = self._rows("SELECT COUNT(*) FROM measurements WHERE scope = ?")
        return int(count)

    def _rows(self, query: str, *more: str) -> Iterator[tuple[Any, ...]]:
        """What a query over the scope finds; StorageError where the file is damaged."""
        try:
            yield from self._db.execute(query, (self.scope, *more))
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def note(self, name: str, value: Any) -> None:
        """Remember a JSON-serialisable fact of the scope under a name."""
        try:
            with self._db:
                self._db.execute("INSERT OR REPLACE INTO notes VALUES (?, ?, ?)", (self.scope, name, json.dumps(value)))
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def noted(self, name: str) -> Any:
        """What `note` remembered, or None."""
        query = "SELECT value FROM notes WHERE scope = ? AND name = ?"
        row = next(self._rows(query, name), None)
        return None if row is None else json.loads(row[0])


def _entry(row: Sequence[Any]) -> Entry:
    task_id, key, strategy, trace, latencies, error, message, build_seconds, run_seconds, measured_at = row
    values = tuple(float(x) for x in json.loads(latencies))
    measurement = Measurement(values, error, message, build_seconds, run_seconds, measured_at)
    return Entry(task_id, key, strategy, trace, measurement)
