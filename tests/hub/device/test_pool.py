"""Workers: a crash, a hang or too much memory costs one job, and time-outs count the work, not a busy machine."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import tvm
from tchub.hub.device import pool
from tchub.hub.device.build_jobs import build
from tchub.hub.device.errors import DeviceError
from tchub.hub.device.jobs import run
from tchub.hub.device.patience import TimeLimit, run_process, wait_for
from tchub.hub.device.pool import Worker, Zygote
from tchub.hub.device.timing import TimingConfig
from tchub.hub.device.worker import WorkerSetup, set_up
from tvm import te


@pytest.fixture
def worker(zygote: Zygote) -> Iterator[Worker]:
    worker = Worker(zygote, WorkerSetup())
    yield worker
    worker.stop()


def pid_of(worker: Worker) -> Any:
    """Have a worker set itself up; None where it fails."""
    return worker.call(set_up, (WorkerSetup(),), 10).value


def test_an_exception_is_told_and_the_worker_lives_on(worker: Worker) -> None:
    pid = pid_of(worker)
    result = worker.call(build, ("not a module", {"kind": "llvm"}, "/nowhere/x.so"), 10)
    assert (result.error, bool(result.message)) == ("exception", True)
    assert pid_of(worker) == pid != os.getpid()


def test_a_worker_gets_no_huge_pages(worker: Worker) -> None:
    """The compiled network has none, and some programs are much faster with them."""
    assert "THP_enabled:\t0" in Path(f"/proc/{pid_of(worker)}/status").read_text()


def test_a_hang_is_killed_and_the_next_job_gets_a_new_worker(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "STALL_SECONDS", 0.5)
    pid = pid_of(worker)
    os.kill(pid, signal.SIGSTOP)
    result = worker.call(set_up, (WorkerSetup(),), 0.3)
    assert (result.error, result.value) == ("timeout", None)
    assert pid_of(worker) not in (None, pid)


def test_a_crash_costs_one_job(worker: Worker) -> None:
    pid = pid_of(worker)
    os.kill(pid, signal.SIGKILL)
    assert worker.call(set_up, (WorkerSetup(),), 10).error == "crash"
    assert worker.call(set_up, (WorkerSetup(),), 10).error is None


def test_memory_over_the_limit_fails_in_the_worker_alone(zygote: Zygote) -> None:
    worker = Worker(zygote, WorkerSetup(memory_bytes=2 << 30))
    huge = [((1 << 30,), "float64")]
    result = worker.call(run, ("/nowhere/x.so", huge, None, None), 20)
    assert result.error in ("exception", "crash")
    worker.stop()


def test_a_dead_zygote_is_an_error_and_no_process_is_hit() -> None:
    dying = Zygote()
    worker = Worker(dying, WorkerSetup())
    pid = pid_of(worker)
    dying._process.kill()
    dying._process.wait()
    with suppress(ProcessLookupError):  # it ends by itself soon after the zygote
        os.kill(pid, signal.SIGKILL)
    assert worker.call(set_up, (WorkerSetup(),), 10).error == "crash"
    with pytest.raises(DeviceError, match="died") as caught:  # before, process id 0: the tuner's own group
        worker.call(set_up, (WorkerSetup(),), 10)
    assert "again" in caught.value.remedy
    dying.close()


def test_ctrl_c_while_the_workers_start_ends_none_of_them() -> None:
    """A terminal sends it to every process of the tuner's group; the tuner stops when it is safe."""
    tuner = """if True:
        import os, signal
        from tchub.hub.device.pool import Zygote
        signal.signal(signal.SIGINT, lambda *_: None)
        zygote = Zygote()
        os.killpg(0, signal.SIGINT)
        zygote.wait()
        zygote.close()
    """
    done = subprocess.run([sys.executable, "-c", tuner], process_group=0, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_start_that_a_signal_ended_is_not_told_as_a_broken_tvm() -> None:
    dying = Zygote()
    dying._process.kill()
    with pytest.raises(DeviceError, match="could not be started: it was ended by SIGKILL"):
        dying.wait()
    dying.close()


def test_a_parallel_program_stays_on_the_cores_of_its_worker(zygote: Zygote, tmp_path: Path) -> None:
    """By itself TVM's pool binds its threads to cores of its own choice, those of the builders among them."""
    core = min(os.sched_getaffinity(0))
    setup = WorkerSetup(cpus=(core,), threads=2)
    worker = Worker(zygote, setup)
    a = te.placeholder((64, 64), name="A")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([a, te.compute((64, 64), lambda i, j: a[i, j] + 1.0, name="B")]))
    schedule.parallel(schedule.get_loops(schedule.get_sblock("B"))[0])
    library, shapes = str(tmp_path / "p.so"), [((64, 64), "float32")] * 2
    built = worker.call(build, (str(tvm.ir.save_json(schedule.mod)), {"kind": "llvm", "num-cores": 2}, library), 60)
    assert built.error is None, built.message
    ran = worker.call(run, (library, shapes, TimingConfig(max_repeats=2, max_seconds=0.1), None), 60)
    assert ran.error is None, ran.message
    pid = worker.call(set_up, (setup,), 10).value
    threads = list(Path(f"/proc/{pid}/task").iterdir())
    assert len(threads) >= 2, "the pool has a thread of its own"
    assert {frozenset(os.sched_getaffinity(int(thread.name))) for thread in threads} == {frozenset({core})}
    worker.stop()


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


@pytest.mark.parametrize(
    ("job", "seconds", "waits", "message"),
    [
        pytest.param((sum, ENDLESS), 0.3, False, "it has used 0.3 s of computing", id="computes without end"),
        pytest.param((time.sleep, (60,)), 0.1, False, "it has done nothing for 0.6 s", id="does nothing"),
        pytest.param((time.sleep, (60,)), 0.2, True, "no answer within 0.2 s", id="waits for another machine"),
    ],
)
def test_a_job_is_killed_after_its_seconds(
    zygote: Zygote, monkeypatch: pytest.MonkeyPatch, job: Any, seconds: float, waits: bool, message: str
) -> None:
    monkeypatch.setattr(pool, "STALL_SECONDS", 0.6)
    worker = Worker(zygote, WorkerSetup(), waits=waits)
    result = worker.call(*job, seconds)
    assert (result.error, result.message) == ("timeout", f"killed: {message}")
    worker.stop()


def test_a_job_that_computes_less_than_its_seconds_is_not_killed(worker: Worker) -> None:
    assert worker.call(time.sleep, (0.3,), 0.1).error is None


def test_a_job_beside_busy_processes_takes_longer_and_is_not_killed(zygote: Zygote) -> None:
    worker = Worker(zygote, WorkerSetup(cpus=(CORE,)))
    with busy(CORE, 8):
        assert worker.call(sum, SHORT, 0.5).error is None, "0.1 s of computing took about 1 s"
    worker.stop()


def test_a_worker_that_yields_to_busy_processes_does_its_job_without_yielding(
    zygote: Zygote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_STARVED_SECONDS", 0.2)
    worker = Worker(zygote, WorkerSetup(cpus=(CORE,), idle=True))
    with busy(CORE, 2):
        assert worker.call(sum, SHORT, 20).value == sum(*SHORT)
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
    done = run_process(upper, ["hel", "lo"], os.environ, TimeLimit(20.0))
    assert (done.returncode, done.stdout) == (0, "HELLO\n")
    sleeping = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
    with pytest.raises(TimeoutError, match=r"nothing for 0\.5 s"):
        run_process(sleeping, [], os.environ, TimeLimit(20.0, 0.5))


@pytest.mark.parametrize("code", ["import sys; sys.stdin.read()", ""], ids=["waits for more", "has ended"])
def test_a_failure_while_making_what_a_command_reads_is_told_and_ends_the_command(code: str) -> None:
    def fail() -> Iterator[str]:
        yield "a line"
        children.extend(one for one in psutil.Process().children() if one not in before)
        if not code:
            psutil.wait_procs(children, timeout=20.0)
        yield "another"
        raise OSError("no library")

    before, children = psutil.Process().children(), list[psutil.Process]()
    with pytest.raises(OSError, match="no library"):
        run_process([sys.executable, "-S", "-c", code], fail(), os.environ, TimeLimit(20.0))
    assert [child.is_running() for child in children] == [False]
