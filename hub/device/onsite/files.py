"""A bundle on disk, zipped or unpacked: its manifest, and its files checked against their sha256."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import zipfile
from pathlib import Path
from typing import Any

FORMAT = 1
MANIFEST = "manifest.json"
_MAX_CONTAINERS = 8 << 20  # an empty one takes two bytes of a file and 70 of memory


class Package:
    """A bundle opened for reading: the zip file, or the folder it was unpacked into; an OnsiteError where it is none.

    `identity` is the sha256 of the manifest, which names the sha256 of every other file.
    """

    def __init__(self, path: str) -> None:
        self._folder = Path(path)
        try:
            self._zip = zipfile.ZipFile(path) if self._folder.is_file() else None
            self.manifest: dict[str, Any] = self.read_json(MANIFEST)
            self.identity = hashlib.sha256(self.read(MANIFEST)).hexdigest()
        except (OSError, KeyError, ValueError, RecursionError, zipfile.BadZipFile) as error:
            raise OnsiteError(f"{path} is no bundle: {error}", 2) from error
        if self.manifest.get("format") != FORMAT:
            raise OnsiteError(f"{path} has the format {self.manifest.get('format')}, this reader knows {FORMAT}", 2)

    def read(self, name: str) -> bytes:
        """Return a file of the bundle; of a zipped one no more than the archive says that it holds."""
        if self._zip is None:
            return (self._folder / name).read_bytes()
        with self._zip.open(name) as file:
            return file.read(self._zip.getinfo(name).file_size)

    def read_json(self, name: str) -> Any:
        """Return the value of a file of JSON, which takes up to ten times the file's bytes."""
        data = self.read(name)
        if data.count(b"[") + data.count(b"{") > _MAX_CONTAINERS:
            raise ValueError(f"{name} holds more than {_MAX_CONTAINERS} lists and objects")
        return json.loads(data)

    def check(self) -> None:
        """Compare every file that the manifest names with its sha256; raises an OnsiteError."""
        wanted = dict(self.manifest["files"])
        wanted.update((p["file"], p["sha256"]) for p in self.manifest["programs"] if p["file"])
        for name, digest in wanted.items():
            try:
                actual = hashlib.sha256(self.read(name)).hexdigest()
            except (OSError, KeyError, zipfile.BadZipFile) as error:
                raise OnsiteError(f"{name} cannot be read from the bundle: {error}", 2) from error
            if actual != digest:
                raise OnsiteError(
                    f"{name} was changed: its sha256 is {actual[:16]}, the manifest says {digest[:16]}", 2
                )


class OnsiteError(Exception):
    """Measuring cannot go on; `code` is the exit code of `run.py`.

    2: the bundle or the results are damaged or do not fit each other. 3: this machine cannot run the bundle.
    4: nearly every program fails.
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class ProgramError(Exception):
    """One program cannot be run; `fatal` where the process that ran it must not run another."""

    def __init__(self, message: str, *, fatal: bool = False) -> None:
        super().__init__(message)
        self.fatal = fatal


class Results:
    """Results of one bundle, in a file that grows; an OnsiteError where it is of another one.

    Attributes:
        done: the id of every program that has a result.
        best: latency in seconds of the fastest program of each task.
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
                actual = line["bundle"] if line["kind"] == "machine" else bundle
                if line["kind"] == "program":
                    self._know(line)
            except (ValueError, KeyError, TypeError) as error:
                raise OnsiteError(f"{self.path}, line {number}, is no result: {error}", 2) from error
            if actual != bundle:
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


def machine_facts() -> dict[str, Any]:
    """The CPU, its cores, the system and the driver."""
    lines = reversed(system_text("/proc/cpuinfo").splitlines())
    named = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    return {
        "cpu_model": named.get("model name") or named.get("CPU part") or platform.processor() or "unknown",
        "arch": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "nvidia_driver": system_text("/proc/driver/nvidia/version").partition("\n")[0] or None,
    }


def system_text(path: str | Path) -> str:
    """Return a small system file's text; empty where it cannot be read (containers hide some)."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
