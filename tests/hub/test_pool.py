"""Workers: one job at a time, and a crash, a hang or too much memory costs that job alone."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from tchub.hub.device.errors import WorkerStartError
from tchub.hub.device.pool import Worker, WorkerPool, Zygote
from tchub.hub.device.worker import WorkerSetup


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    zygote = Zygote()
    yield zygote
    zygote.close()


@pytest.fixture
def worker(zygote: Zygote) -> Iterator[Worker]:
    worker = Worker(zygote, WorkerSetup())
    yield worker
    worker.stop()


def test_a_worker_is_another_process_and_stays_the_same_one(worker: Worker) -> None:
    first = worker.call("set_up", (WorkerSetup(),), 10).value
    second = worker.call("set_up", (WorkerSetup(),), 10).value
    assert first == second != os.getpid()


def test_an_exception_is_told_and_the_worker_lives_on(worker: Worker) -> None:
    pid = worker.call("set_up", (WorkerSetup(),), 10).value
    result = worker.call("build", ("not a module", {"kind": "llvm"}, "/nowhere/x.so"), 10)
    assert result.error == "exception"
    assert result.message
    assert worker.call("set_up", (WorkerSetup(),), 10).value == pid


def test_a_hang_is_killed_and_the_next_job_gets_a_new_worker(worker: Worker) -> None:
    pid = worker.call("set_up", (WorkerSetup(),), 10).value
    os.kill(pid, signal.SIGSTOP)  # as good as an endless loop
    result = worker.call("set_up", (WorkerSetup(),), 0.3)
    assert (result.error, result.value) == ("timeout", None)
    assert worker.call("set_up", (WorkerSetup(),), 10).value not in (None, pid)


def test_a_crash_costs_one_job(worker: Worker) -> None:
    pid = worker.call("set_up", (WorkerSetup(),), 10).value
    os.kill(pid, signal.SIGKILL)
    assert worker.call("set_up", (WorkerSetup(),), 10).error == "crash"
    assert worker.call("set_up", (WorkerSetup(),), 10).error is None


def test_memory_over_the_limit_fails_in_the_worker_alone(zygote: Zygote) -> None:
    worker = Worker(zygote, WorkerSetup(memory_bytes=2 << 30))
    huge = [((1 << 30,), "float64")]
    result = worker.call("run", ("/nowhere/x.so", huge, None, None), 20)
    assert result.error in ("exception", "crash")
    worker.stop()


def test_a_pool_answers_every_job_in_its_own_future(zygote: Zygote) -> None:
    pool = WorkerPool(zygote, [WorkerSetup(), WorkerSetup()])
    futures = [pool.submit("set_up", (WorkerSetup(),), 20) for _ in range(12)]
    pids = {future.result(timeout=60).value for future in futures}
    assert 1 <= len(pids) <= 2
    pool.close()


def test_a_dead_zygote_is_an_error_and_no_process_is_hit() -> None:
    dying = Zygote()
    worker = Worker(dying, WorkerSetup())
    pid = worker.call("set_up", (WorkerSetup(),), 10).value
    dying._process.kill()
    dying._process.wait()
    os.kill(pid, signal.SIGKILL)
    assert worker.call("set_up", (WorkerSetup(),), 10).error == "crash"
    with pytest.raises(WorkerStartError, match="died") as caught:  # before, process id 0: the tuner's own group
        worker.call("set_up", (WorkerSetup(),), 10)
    assert "again" in caught.value.remedy
    dying.close()
