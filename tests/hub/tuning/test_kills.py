"""What survives a kill -9 and a full disk: every measurement that finished, once; see also scripts/kills."""

import importlib
import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

TRIALS = 12


@pytest.fixture
def victim() -> Any:
    """`python -m scripts.kills.session`: a session of two tiny tasks, and what checks its folder."""
    return importlib.import_module("scripts.kills.session")


def test_a_tuner_killed_in_the_middle_resumes_and_loses_nothing(
    victim: Any, tmp_path: Path, forked: Callable[..., Any]
) -> None:
    process = forked(victim.tune, tmp_path, TRIALS, victim.Pretended())
    _wait_until(lambda: _lines(tmp_path / "seen.jsonl") >= 5)
    process.kill()
    process.join()
    with closing(sqlite3.connect(tmp_path / "records.sqlite")) as store:
        (paid,) = store.execute("SELECT COUNT(*) FROM programs").fetchone()
    assert 5 <= paid < TRIALS + 2, "killed before its end (two are untuned programs)"
    view = victim.tune(tmp_path, TRIALS, victim.Pretended())
    verdict = victim.check(tmp_path)
    assert view.done == verdict.trials == verdict.logged == TRIALS
    assert verdict.ok, verdict
    assert _lines(tmp_path / "seen.jsonl") <= TRIALS + 3, "only what was in hand at the kill is measured again"


@pytest.mark.usefixtures("shared_zygote")
def test_a_killed_worker_costs_the_program_in_hand_alone(victim: Any, tmp_path: Path) -> None:
    from tchub.hub.search.measuring import WorkerMeasure

    killed: list[int] = []

    def killing(measure: Any) -> Any:
        def one_by_one(jobs: Any) -> Iterator[Any]:
            for measured in measure(jobs):
                yield measured
                if not killed:
                    helpers = psutil.Process().children(recursive=True)
                    killed.extend(p.pid for p in helpers if p.ppid() != os.getpid())  # not their parent, the zygote
                    for pid in killed:
                        os.kill(pid, signal.SIGKILL)

        return one_by_one

    with victim.open_machine("workers") as measurer:
        view = victim.tune(tmp_path, TRIALS, killing(WorkerMeasure(measurer)))
    verdict = victim.check(tmp_path)
    assert killed
    assert view.done == verdict.trials == TRIALS
    assert verdict.ok, verdict
    assert verdict.failed <= len(killed)


def _wait_until(true: Any, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.005)


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0
