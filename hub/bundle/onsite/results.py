"""The results file: one JSON line a program, on disk before the next program starts, so that a run can go on."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from .faults import OnsiteError


class Results:
    """Results of one bundle, in a file that grows.

    Attributes:
        done: the id of every program that has a result.
        best: latency in seconds of the fastest program of each task.

    Raises:
        OnsiteError: the file is of another bundle.
    """

    def __init__(self, path: str, bundle: str) -> None:
        self.path = Path(path)
        self.done: set[int] = set()
        self.best: dict[str, float] = {}
        if self.path.exists():
            self._read(bundle)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("ab")
        self._before = self._file.tell(), frozenset(self.done)

    def _read(self, bundle: str) -> None:
        data = self.path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):  # a kill left half a line
            os.truncate(self.path, whole)
        for number, text in enumerate(data[:whole].splitlines(), 1):
            try:
                line = json.loads(text)
                found = line["bundle"] if line["kind"] == "machine" else bundle
                if line["kind"] == "program":
                    self._know(line)
            except (ValueError, KeyError, TypeError) as error:
                raise OnsiteError(f"{self.path}, line {number}, is no result: {error}", 2) from error
            if found != bundle:
                raise OnsiteError(f"{self.path} holds results of another bundle: name another file", 2)

    def _know(self, line: dict[str, Any]) -> None:
        self.done.add(line["id"])
        if line["error"] is None:
            latency = sorted(line["latencies"])[len(line["latencies"]) // 2]
            self.best[line["task_id"]] = min(latency, self.best.get(line["task_id"], latency))

    def take_back(self) -> None:
        """Leave the file as it was when it was opened; one call of the system, which a kill cannot halve."""
        size, done = self._before
        os.ftruncate(self._file.fileno(), size)
        os.fsync(self._file.fileno())
        self.done = set(done)

    def add(self, line: dict[str, Any]) -> None:
        """Write one line; it is on disk when this returns."""
        self._file.write(json.dumps(line).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        if line["kind"] == "program":
            self._know(line)
