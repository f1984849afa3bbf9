"""Time-outs count the work of a process, so that a busy machine costs time and no program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest
from tchub.hub.device import pool
from tchub.hub.device.errors import DeviceError
from tchub.hub.device.patience import TimeLimit, run_process, wait_for
from tchub.hub.device.pool import Worker, Zygote
from tchub.hub.device.worker import WorkerSetup

COUNT = "builtins:sum"
ENDLESS, SHORT = (range(10**12),), (range(4 * 10**6),)  # the short one computes for about 0.1 s
CORE = max(os.sched_getaffinity(0))


@contextmanager
def busy(core: int, processes: int) -> Iterator[None]:
    """Processes that compute on one core without end."""
    code = f"import os; os.sched_setaffinity(0, [{core}]); print(flush=True)\nwhile True: pass"
    command = [sys.executable, "-S", "-c", code]
    others = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(processes)]
    try:
        for other in others:
            assert other.stdout is not None
            other.stdout.readline()
        yield
    finally:
        for other in others:
            other.kill()
            other.communicate()


def test_a_job_that_computes_without_end_is_killed_after_its_seconds(zygote: Zygote) -> None:
    worker = Worker(zygote, WorkerSetup())
    result = worker.call(COUNT, ENDLESS, 0.3)
    assert (result.error, result.message) == ("timeout", "killed: it has used 0.3 s of computing")
    worker.stop()


def test_a_job_that_does_nothing_is_killed_after_a_longer_wait(zygote: Zygote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "STALL_SECONDS", 0.6)
    worker = Worker(zygote, WorkerSetup())
    assert worker.call("time:sleep", (0.3,), 0.1).error is None, "it has computed for less than 0.1 s"
    result = worker.call("time:sleep", (60,), 0.1)
    assert (result.error, result.message) == ("timeout", "killed: it has done nothing for 0.6 s")
    worker.stop()


def test_a_job_that_waits_for_another_machine_is_limited_by_the_clock(zygote: Zygote) -> None:
    worker = Worker(zygote, WorkerSetup(), waits=True)
    result = worker.call("time:sleep", (60,), 0.2)
    assert (result.error, result.message) == ("timeout", "killed: no answer within 0.2 s")
    worker.stop()


def test_a_job_beside_busy_processes_takes_longer_and_is_not_killed(zygote: Zygote) -> None:
    worker = Worker(zygote, WorkerSetup(cpus=(CORE,)))
    with busy(CORE, 8):
        assert worker.call(COUNT, SHORT, 0.5).error is None, "0.1 s of computing took about 1 s"
    worker.stop()


def test_a_worker_that_yields_to_busy_processes_does_its_job_without_yielding(
    zygote: Zygote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_STARVED_SECONDS", 0.2)
    worker = Worker(zygote, WorkerSetup(cpus=(CORE,), idle=True))
    with busy(CORE, 2):
        assert worker.call(COUNT, SHORT, 20).value == sum(*SHORT)
    worker.stop()


def test_a_start_that_does_nothing_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_START", TimeLimit(120.0, stall=0.3))
    hanging = Zygote()
    os.kill(hanging._process.pid, signal.SIGSTOP)
    with pytest.raises(DeviceError, match=r"could not be started: it has done nothing for 0\.3 s"):
        hanging.wait()
    hanging.close()


def test_the_work_of_children_counts_too() -> None:
    """A compiler's driver waits while the compiler computes."""
    child = f"import subprocess, sys; subprocess.run([{sys.executable!r}, '-S', '-c', 'while True: pass'])"
    with subprocess.Popen([sys.executable, "-S", "-c", child], start_new_session=True) as driver:

        def ended(seconds: float) -> bool:
            try:
                return driver.wait(seconds) is not None
            except subprocess.TimeoutExpired:
                return False

        try:
            assert wait_for(ended, driver.pid, TimeLimit(0.5, stall=30.0)) == "it has used 0.5 s of computing"
        finally:
            os.killpg(driver.pid, signal.SIGKILL)


def test_a_command_gives_its_output_or_a_time_out() -> None:
    upper = [sys.executable, "-S", "-c", "import sys; print(sys.stdin.read().upper())"]
    done = run_process(upper, lambda: "hello", os.environ, TimeLimit(20.0))
    assert (done.returncode, done.stdout) == (0, "HELLO\n")
    sleeping = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
    with pytest.raises(TimeoutError, match=r"nothing for 0\.5 s"):
        run_process(sleeping, lambda: "", os.environ, TimeLimit(20.0, 0.5))


def test_what_a_command_reads_is_made_while_it_starts_and_a_failure_there_ends_it() -> None:
    def fail() -> str:
        children.extend(one for one in psutil.Process().children() if "input()" in one.cmdline())
        raise OSError("no library")

    children: list[psutil.Process] = []
    with pytest.raises(OSError, match="no library"):
        run_process([sys.executable, "-S", "-c", "input()"], fail, os.environ, TimeLimit(20.0))
    assert [child.is_running() for child in children] == [False]
