"""Programs that earlier runs on this machine measured: parents, context and known best of a new run, at no trial."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..device.candidate import from_measure_candidate
from ..device.failures import is_passing
from ..device.measure import Measurement
from ..registry.store import home_root
from .journal import Journal

if TYPE_CHECKING:
    from ..device.candidate import Candidate
    from ..device.detect import LocalDevice
    from ..networks.tasks import TuningTask
    from ..search.measuring import Measured

# Programs of a task that a run takes over at most, the fastest; so many of them go into its database, which takes a
# replay in TVM each.
MOST_KNOWN, MOST_RECORDS = 256, 4


@dataclass(frozen=True)
class KnownProgram:
    """A program that an earlier run measured.

    Attributes:
        key: as `candidates.trace_key`.
        trace: `[instructions, decisions]`.
        latency: in seconds; infinite when it failed.
    """

    key: str
    trace: list[Any]
    latency: float


class History:
    """What was measured on one device for one target, in a file of the user's data folder.

    Programs of another device, CPU, target, number of threads or TVM version are never seen: their latencies mean
    something else.

    Args:
        path: the file, which scopes share.
        scope: the facts that must be equal; see `scope_of`.

    Raises:
        StorageError: the file cannot be opened.
    """

    def __init__(self, path: Path, scope: Mapping[str, Any]) -> None:
        self._journal = Journal(path, scope)

    def __enter__(self) -> History:
        return self

    def __exit__(self, *_: object) -> None:
        self._journal.close()

    def put(self, task: TuningTask, candidate: Any, measured: Measured) -> None:
        """Keep a measured program of a search, unless it failed by what another day may spare it.

        Raises:
            StorageError: the file cannot be written.
        """
        result = measured.result
        if result.error_msg is not None and is_passing(str(result.error_msg)):
            return
        times = tuple(float(s) for s in result.run_secs or ()) if result.error_msg is None else ()
        message = None if result.error_msg is None else str(result.error_msg)
        kept = Measurement(times, message and "run", message, measured.build_seconds, measured.run_seconds)
        self._journal.put(from_measure_candidate(task.task_id, "tune", candidate), kept)

    def of_task(self, task_id: str) -> list[KnownProgram]:
        """Programs of a task, fastest first, failures last; at most `MOST_KNOWN`."""
        found = []
        for entry in self._journal.of_task(task_id):
            error, message = entry.measurement.error, entry.measurement.message
            if error is not None and is_passing(f"{error}: {message}"):
                continue
            latency = entry.measurement.latency if error is None else inf
            found.append((latency if isfinite(latency) else inf, entry.key, entry.trace))
        return [KnownProgram(key, json.loads(trace), latency) for latency, key, trace in sorted(found)[:MOST_KNOWN]]


class SharingJournal(Journal):
    """A run's own journal that keeps its programs for later tuning runs too.

    Args:
        path, scope: of the run's journal; the scope names `device`, `cpu_model`, `target` and `threads`.
        history: takes each program as well; closed with the journal.
    """

    def __init__(self, path: Path | str, scope: Mapping[str, Any], history: Journal) -> None:
        super().__init__(path, scope)
        self._history = history

    def put(self, candidate: Candidate, measurement: Measurement) -> None:
        """Record a measurement in both."""
        super().put(candidate, measurement)
        self._history.put(candidate, measurement)

    def close(self) -> None:
        """Close both files."""
        self._history.close()
        super().close()


def scope_of(device: str, cpu_model: str, target: Any, threads: int) -> dict[str, Any]:
    """What must be equal before latencies of two runs may be compared.

    Args:
        target: a TVM target, or one as a dictionary; two that mean the same give the same scope.
    """
    import tvm

    return {
        "device": device,
        "cpu_model": cpu_model,
        "target": str(tvm.target.Target(target)),
        "threads": threads,
        "tvm_version": str(tvm.__version__),
    }


def history_file() -> Path:
    """Where this user's measured programs are kept."""
    return home_root().parent / "history.sqlite"


def open_history(local: LocalDevice, target: Any, threads: int) -> History:
    """The history of a device for a target.

    Raises:
        StorageError: the user's data folder cannot be written.
    """
    return History(history_file(), scope_of(local.device.name, local.cpu_model, target, threads))


def open_sharing_journal(path: Path, scope: Mapping[str, Any]) -> SharingJournal:
    """The journal of a run that measures for another purpose, and whose programs later tuning runs may begin with.

    Raises:
        StorageError: a file cannot be written.
    """
    facts = scope_of(scope["device"], scope["cpu_model"], scope["target"], scope["threads"])
    return SharingJournal(path, scope, Journal(history_file(), facts))
