"""What survives a kill -9 and a full disk: every measurement that finished, once; see also scripts/kills/run.py."""

from __future__ import annotations

import errno
import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from tchub.zoo.files import StorageError
from tchub.hub.device.measurement import Measurement
from tchub.hub.records.journal import Journal
from tchub.hub.records.records import open_database
from tchub.hub.records.trials import Trial, TrialLog
from tchub.hub.device.candidate import tuning_record
from tchub.zoo.files import StorageError

ROOT = Path(__file__).resolve().parents[2]
TRIALS = 12


@pytest.fixture
def victim() -> Any:
    """`python -m scripts.kills.session`: a session of two tiny tasks, and what checks its folder."""
    return importlib.import_module("scripts.kills.session")


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Writes past `size` bytes of a file fail, as they do on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_tuner_killed_in_the_middle_resumes_and_loses_nothing(victim: Any, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "scripts.kills.session", str(tmp_path), "--trials", str(TRIALS)]
    with subprocess.Popen([*command, "--machine", "pretended"], cwd=ROOT) as process:
        _wait_until(lambda: _lines(tmp_path / "seen.jsonl") >= 5)
        process.send_signal(signal.SIGKILL)
    paid = _lines(tmp_path / "trials.jsonl")
    assert 5 <= paid < TRIALS + 2, "killed before its end (two of the lines are of untuned programs)"
    view = victim.tune(tmp_path, TRIALS, victim.Pretended())
    found = victim.check(tmp_path)
    assert view.done == found.trials == TRIALS
    assert found.ok, found
    assert _lines(tmp_path / "seen.jsonl") <= TRIALS + 3, "only what was in hand at the kill is measured again"


def test_a_killed_worker_costs_the_program_in_hand_alone(victim: Any, tmp_path: Path) -> None:
    from tchub.hub.search.measuring import MeasureHere

    killed: list[int] = []

    def killing(measure: Any) -> Any:
        def one_by_one(jobs: Any) -> Iterator[Any]:
            for found in measure(jobs):
                yield found
                if not killed:
                    helpers = psutil.Process().children(recursive=True)
                    killed.extend(p.pid for p in helpers if p.ppid() != os.getpid())  # not their parent, the zygote
                    for pid in killed:
                        os.kill(pid, signal.SIGKILL)

        return one_by_one

    with victim.workers() as measurer:
        view = victim.tune(tmp_path, TRIALS, killing(MeasureHere(measurer)))
    found = victim.check(tmp_path)
    assert killed
    assert view.done == found.trials == TRIALS
    assert found.ok, found
    assert found.failed <= len(killed)


def test_a_record_that_does_not_fit_on_the_disk_is_an_error_and_leaves_no_trace(
    tmp_path: Path, small_task: Any, small_candidates: list[Any], target: Any
) -> None:
    database = open_database(tmp_path)
    workload = database.workload_of(small_task.mod)
    record = tuning_record(small_task.mod, target, workload, json.loads(small_candidates[0].trace), 1e-3)
    database.put(record)
    before = (tmp_path / "database_tuning_record.json").read_bytes()
    with files_of_at_most(len(before) + 100), pytest.raises(StorageError, match=os.strerror(errno.EFBIG)) as error:
        database.put(record)
    assert "same command" in str(error.value.remedy)
    assert (tmp_path / "database_tuning_record.json").read_bytes() == before, "the torn line is cut off"
    assert len(database) == 1
    database.put(record)
    assert len(open_database(tmp_path)) == 2, "once there is room, it goes on"


def test_a_trial_that_cannot_be_logged_is_an_error_and_the_log_stays_readable(tmp_path: Path) -> None:
    log = TrialLog(tmp_path / "trials.jsonl")
    log.append([Trial("a", 1.0, (1e-3,), 1e-3)])
    with files_of_at_most(log.path.stat().st_size + 10), pytest.raises(StorageError, match=os.strerror(errno.EFBIG)):
        log.append([Trial("a", 2.0, (1e-3,), 1e-3)])
    assert [trial.seconds for trial in TrialLog(log.path).trials] == [1.0]


def test_a_full_disk_leaves_the_journal_with_what_was_put_before(tmp_path: Path, small_candidates: list[Any]) -> None:
    path, kept = tmp_path / "journal.sqlite", 0
    with Journal(path, {"device": "test"}) as journal, files_of_at_most(64 * 1024):
        while kept < 1000 and _fits(journal, small_candidates[0], kept):
            kept += 1
    assert 0 < kept < 1000
    with Journal(path, {"device": "test"}) as journal:
        assert len(journal) == kept
        _put(journal, small_candidates[0], kept)
        assert len(journal) == kept + 1


def _fits(journal: Journal, candidate: Any, number: int) -> bool:
    try:
        _put(journal, candidate, number)
    except StorageError:
        return False
    return True


def _put(journal: Journal, candidate: Any, number: int) -> None:
    journal.put(replace(candidate, key=f"{number:016x}"), Measurement((1e-3,), measured_at=float(number)))


def _wait_until(true: Any, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.005)


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0
