"""The journal: on disk at once, never paid twice, never mixed between devices."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tchub.zoo.files import StorageError
from tchub.hub.device.measure import Measurement
from tchub.hub.records.journal import Journal
from tchub.hub.device.candidate import Candidate

SCOPE = {"device": "epyc-turin", "target": {"kind": "llvm"}, "threads": 1}


def candidate(key: str, task: str = "t") -> Candidate:
    return Candidate(task, key, "[[], []]", "random", None)  # type: ignore[arg-type]


def good(seconds: float = 1e-3) -> Measurement:
    return Measurement((seconds, seconds * 1.01), None, None, 0.2, 0.1, 1.7e9)


def test_what_goes_in_comes_out(tmp_path: Path) -> None:
    with Journal(tmp_path / "j.sqlite", SCOPE) as journal:
        journal.put(candidate("a"), good())
    with Journal(tmp_path / "j.sqlite", SCOPE) as journal:
        assert journal.get("t", "a") == good()
        assert journal.get("t", "b") is None
        assert [entry.key for entry in journal.of_task("t")] == ["a"]
        assert len(journal) == 1


def test_a_failure_never_replaces_a_success_and_a_success_replaces_a_failure(tmp_path: Path) -> None:
    failed = Measurement((), "run_timeout", "killed", measured_at=1.0)
    with Journal(tmp_path / "j.sqlite", SCOPE) as journal:
        journal.put(candidate("a"), failed)
        journal.put(candidate("a"), good())
        journal.put(candidate("a"), failed)
        assert journal.get("t", "a") == good()


def test_another_device_or_target_sees_nothing(tmp_path: Path) -> None:
    with Journal(tmp_path / "j.sqlite", SCOPE) as journal:
        journal.put(candidate("a"), good())
    with Journal(tmp_path / "j.sqlite", SCOPE | {"threads": 2}) as other:
        assert other.get("t", "a") is None
        assert len(other) == 0


def test_notes_are_remembered_by_scope(tmp_path: Path) -> None:
    with Journal(tmp_path / "j.sqlite", SCOPE) as journal:
        journal.note("tasks", [1, 2])
        assert journal.noted("tasks") == [1, 2]
        assert journal.noted("other") is None


def test_a_killed_writer_loses_nothing_that_it_had_put(tmp_path: Path) -> None:
    script = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_journal import *
with Journal({str(tmp_path / "j.sqlite")!r}, SCOPE) as journal:
    for i in range(10**6):
        journal.put(candidate(str(i)), good())
        print(i, flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    told = [int(process.stdout.readline()) for _ in range(25)]
    time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    with Journal(tmp_path / "j.sqlite", SCOPE) as journal:
        assert all(journal.get("t", str(i)) == good() for i in told)


def test_a_path_that_cannot_be_written_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StorageError) as caught:
        Journal(tmp_path / "file" / "j.sqlite", SCOPE)
    assert caught.value.remedy


def test_a_file_that_is_no_journal_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "j.sqlite").write_bytes(b"not a database" * 100)
    with pytest.raises(StorageError):
        Journal(tmp_path / "j.sqlite", SCOPE)


def test_a_journal_that_was_damaged_is_a_typed_error_when_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    with Journal(path, SCOPE) as journal:
        for number in range(200):
            journal.put(candidate(str(number)), good())
    data = bytearray(path.read_bytes())
    data[-5 * 4096 :] = b"\xff" * (5 * 4096)  # pages of measurements, as a failing disk leaves them
    path.write_bytes(data)
    with Journal(path, SCOPE) as journal:
        for read in (lambda: list(journal.entries()), lambda: [journal.get("t", str(n)) for n in range(200)]):
            with pytest.raises(StorageError, match="cannot be used"):
                read()
