"""Worker processes: forked from the zygote, given one job at a time, killed when they take too long."""

import contextlib
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from typing import Any

import psutil

from .errors import DeviceError
from .host_facts import cores
from .patience import STALL_SECONDS, STARVED, TimeLimit, WorkClock, wait_for
from .worker import WorkerSetup, set_up

# Importing TVM takes some seconds of computing, setting a worker up some milliseconds.
_START = TimeLimit(120.0)
# TVM's compiler keeps memory from build to build; a fresh fork costs less than watching it.
_JOBS_PER_WORKER = 256
# A worker that yields its core to others does its job again without yielding when it had this share of the core only,
# over so many seconds: a busy machine would let it wait for hours.
_STARVED_SHARE, _STARVED_SECONDS = 0.05, 10.0


# A function of a module that the worker can import.
Job = Callable[..., Any]


@dataclass(frozen=True)
class JobResult:
    """What a job returned, or its error: `timeout` (killed), `crash` (the process died) or `exception`."""

    value: Any = None
    error: str | None = None
    message: str | None = None

    def failure(self, stage: str) -> str | None:
        """Return the kind of a failed program, whose `stage` was `build` or `run`."""
        return {"exception": stage, "timeout": f"{stage}_timeout"}.get(self.error or "", self.error)


class Zygote:
    """Starts and owns the process of `worker.py` that imports TVM once; asks it for workers."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._lock = threading.RLock()
        self._control = ours
        command = [sys.executable, "-m", "tchub.hub.device.worker", str(theirs.fileno())]
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        # A group of its own: Ctrl-C belongs to the tuner, and would end a process that still imports TVM.
        self._process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, env=env, process_group=0,
        )  # fmt: skip
        theirs.close()
        self._ready = False

    def wait(self) -> None:
        """Wait until workers can be forked; a DeviceError says why TVM was not imported."""
        with self._lock:
            if not self._ready:
                answer, why = self._answer()
                if not answer:
                    if why is None:
                        with contextlib.suppress(subprocess.TimeoutExpired):
                            self._process.wait(1.0)
                        code = self._process.returncode or 0
                        why = f"it was ended by {signal.Signals(-code).name}" if code < 0 else "it cannot import TVM"
                    raise DeviceError(
                        f"the process that forks the workers could not be started: {why}",
                        remedy="run the same command again; if it happens again, run `tchub doctor`, and see whether "
                        "TVM's disk answers and this machine has memory left",
                    )
                self._ready = True

    def _answer(self) -> tuple[bytes, str | None]:
        """Return the next 8 bytes of the process, or why they were not waited for; nothing of either when it died."""
        why = wait_for(lambda seconds: bool(wait([self._control], seconds)), self._process.pid, _START)
        return (b"", why) if why is not None else (self._control.recv(8), None)

    def fork(self) -> tuple[int, Connection]:
        """Return a new worker's process id and the connection to it; raises as `wait`, or where the zygote died."""
        ours, theirs = socket.socketpair()
        with self._lock, theirs:
            self.wait()
            try:
                socket.send_fds(self._control, [b"f"], [theirs.fileno()])
                answer, _ = self._answer()
            except OSError:
                answer = b""
        if len(answer) != 8:
            ours.close()
            raise DeviceError(
                "the process that forks the workers died",
                remedy="run the same command again: what was measured before is kept",
            )
        return int.from_bytes(answer, "little"), Connection(ours.detach())

    def close(self) -> None:
        """End the zygote; its workers end with it."""
        self._control.close()
        self._process.kill()  # it holds nothing to save
        self._process.wait()


class Worker:
    """One forked process and the connection to it; forks anew after a crash, a time-out or many jobs.

    Time-outs are of the seconds in which it had a core, or by the clock where its jobs wait for another machine.
    """

    def __init__(self, zygote: Zygote, setup: WorkerSetup, *, waits: bool = False) -> None:
        self._zygote = zygote
        self._setup = setup
        self._waits = waits
        self._pid: int | None = None
        self._connection: Connection | None = None
        self._jobs = 0

    def call(self, job: Job, args: tuple[Any, ...], timeout: float) -> JobResult:
        """Do one job; it is killed when it computed for `timeout` seconds, or did nothing for `STALL_SECONDS`."""
        result = self._do(job, args, timeout, self._setup)
        if result.error == "starved":
            result = self._do(job, args, timeout, replace(self._setup, idle=False))
            self.stop()  # the next job yields again
        return result

    def _do(self, job: Job, args: tuple[Any, ...], timeout: float, setup: WorkerSetup) -> JobResult:
        if self._connection is None and (starved := self._start(setup)) is not None:
            return starved
        self._jobs += 1
        limit = TimeLimit(None, timeout) if self._waits else TimeLimit(timeout, max(timeout, STALL_SECONDS))
        result = self._exchange(job, args, limit, setup)
        if result.error in ("timeout", "crash", "starved") or self._jobs >= _JOBS_PER_WORKER:
            self.stop()
        return result

    def _start(self, setup: WorkerSetup) -> JobResult | None:
        """Fork and set up; returns the result when the worker got no core to do so."""
        self._pid, self._connection = self._zygote.fork()
        self._jobs = 0
        ready = self._exchange(set_up, (setup,), _START, setup)
        if ready.error is None:
            return None
        self.stop()
        if ready.error == "starved":
            return ready
        raise DeviceError(
            f"a worker could not be set up: {ready.message}",
            remedy="run `tchub doctor`; a container may forbid pinning cores or limiting memory",
        )

    def _exchange(self, job: Job, args: tuple[Any, ...], limit: TimeLimit, setup: WorkerSetup) -> JobResult:
        assert self._connection is not None
        assert self._pid is not None
        try:
            self._connection.send((job, args))
            why = wait_for(self._connection.poll, self._pid, limit, lambda clock: setup.idle and _starves(clock))
            if why is not None:
                return JobResult(error="starved" if why == STARVED else "timeout", message=f"killed: {why}")
            answer = self._connection.recv()
        except (EOFError, OSError) as error:
            return JobResult(error="crash", message=f"the worker process died ({type(error).__name__})")
        if answer[0]:
            return JobResult(value=answer[1])
        return JobResult(error="exception", message=f"{answer[1]}: {answer[2]}")

    @property
    def alive(self) -> bool:
        """Return whether the next job goes to the process of the last one."""
        return self._connection is not None

    def stop(self) -> None:
        """Kill the process; the next job gets a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError):  # it ended by itself
                os.kill(self._pid, signal.SIGKILL)
            self._pid = None


def _starves(clock: WorkClock) -> bool:
    """Return whether a worker that yields its core gets next to nothing of it."""
    return clock.seconds >= _STARVED_SECONDS and clock.worked < _STARVED_SHARE * clock.seconds


class WorkerPool:
    """Several workers behind one queue; each job runs on the first free one."""

    def __init__(self, zygote: Zygote, setups: list[WorkerSetup]) -> None:
        self._free: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        self._workers = [Worker(zygote, setup) for setup in setups]
        for worker in self._workers:
            self._free.put(worker)
        self._threads = ThreadPoolExecutor(len(setups), thread_name_prefix="tchub-worker")

    def submit(self, job: Job, args: tuple[Any, ...], timeout: float) -> Future[JobResult]:
        """Queue a job; the future never raises for what the job did."""
        return self._threads.submit(self._run, job, args, timeout)

    def _run(self, job: Job, args: tuple[Any, ...], timeout: float) -> JobResult:
        worker = self._free.get()
        try:
            return worker.call(job, args, timeout)
        finally:
            self._free.put(worker)

    def close(self) -> None:
        """Drop queued jobs and kill the workers."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            worker.stop()
        self._threads.shutdown(wait=True)


def builder_setups() -> list[WorkerSetup]:
    """Return workers that compile, one for each CPU that this process may use."""
    memory = psutil.virtual_memory().total
    return [WorkerSetup((cpu,), memory_bytes=memory) for cpu in cores()]


def real_time_granted() -> bool:
    """Return whether this process may have real-time priority: ask for it, and give it back."""
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        return False
    os.sched_setscheduler(0, *before)
    return True


def timing_cpus(physical: Sequence[Sequence[int]], threads: int) -> list[int]:
    """Return the CPUs for the threads of a program: one of each of the last cores, unless it has more threads."""
    if threads <= len(physical):
        return [core[0] for core in physical[-threads:]]
    return sorted(cpu for core in physical for cpu in core)[-threads:]


def plan_workers(
    physical: Sequence[Sequence[int]], threads: int, memory: int
) -> tuple[list[WorkerSetup], WorkerSetup, bool]:
    """Return builders, the runner, and whether builds may go on while a program is timed.

    With more physical cores than threads, the last `threads` cores time programs; each other CPU compiles, and the
    measuring CPUs compile as well while they idle, but not those that share a core with them. A timed program with
    real-time priority takes its core at once; where that is not granted, the builders of its core are SCHED_IDLE, which
    yields to it. With no core to spare, a batch is built first, on every CPU, and timed after.

    Args:
        physical: the CPUs of each physical core, see `physical_cores`.
        memory: address space of a worker in bytes.
    """
    timing = timing_cpus(physical, threads)
    overlap = len(physical) > threads
    runner = WorkerSetup(tuple(timing), urgent=overlap, threads=threads, memory_bytes=memory)
    building = sorted(cpu for core in physical for cpu in core)
    if overlap:
        shared = {cpu for core in physical[-threads:] for cpu in core} - set(timing)
        building = [cpu for cpu in building if cpu not in shared]
    yielding = set(timing) if overlap and not real_time_granted() else set()
    builders = [WorkerSetup((cpu,), idle=cpu in yielding, memory_bytes=memory) for cpu in building]
    return builders, runner, overlap


COMPILERS = ("g++", "gcc", "clang++", "clang", "c++", "cc")
"""What links a library for TVM, in its own order of preference."""


def require_compiler() -> None:
    """Raise a DeviceError where no C compiler can link what TVM builds."""
    if not any(map(shutil.which, (os.environ.get("CXX", ""), *COMPILERS))):
        raise DeviceError(
            "no C compiler was found, and TVM needs one to link programs",
            remedy="install gcc or clang (Debian: apt-get install g++), or set CXX",
        )
