"""Worker processes: forked from the zygote, given one job at a time, killed when they take too long."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from .errors import WorkerStartError
from .worker import WorkerSetup

_START_SECONDS = 120.0
# TVM's compiler keeps memory from build to build; a fresh fork costs less than watching it.
_JOBS_PER_WORKER = 256
# A worker that yields its core to others may wait long before it is at fault.
_IDLE_PATIENCE = 4.0


@dataclass(frozen=True)
class JobResult:
    """How a job ended.

    Attributes:
        value: what the job returned, when `error` is None.
        error: None, `timeout` (killed), `crash` (the process died) or `exception`.
        message: one line about the error.
    """

    value: Any = None
    error: str | None = None
    message: str | None = None


class Zygote:
    """Starts and owns the process of `zygote.py`; asks it for workers."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._lock = threading.Lock()
        self._control = ours
        command = [sys.executable, "-m", "tchub.hub.device.zygote", str(theirs.fileno())]
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        # A group of its own: Ctrl-C belongs to the tuner, and would end a process that still imports TVM.
        self._process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, env=env, process_group=0,
        )  # fmt: skip
        theirs.close()
        ours.settimeout(_START_SECONDS)
        self._ready = False

    def wait(self) -> None:
        """Wait until workers can be forked.

        Raises:
            WorkerStartError: TVM could not be imported, or the process was ended by a signal.
        """
        with self._lock:
            self._await_ready()

    def _await_ready(self) -> None:
        if self._ready:
            return
        try:
            self._ready = self._control.recv(8) == b"ready\0\0\0"
        except TimeoutError:
            self._ready = False
        if not self._ready:
            raise self._not_ready()

    def _not_ready(self) -> WorkerStartError:
        """What kept it from importing TVM: somebody or the system ended it, or TVM is broken."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        code = self._process.returncode
        if code is not None and code < 0:
            return WorkerStartError(
                f"the process that forks the workers was ended by {signal.Signals(-code).name} while it started",
                remedy="run the same command again; if nobody ended it, this machine may be short of memory",
            )
        return WorkerStartError(
            "the worker process could not import TVM", remedy="run `tchub doctor`; it checks TVM and its ffi version"
        )

    def fork(self) -> tuple[int, Connection]:
        """A new worker: its process id and the connection to it.

        Raises:
            WorkerStartError: the zygote could not import TVM, or died.
        """
        ours, theirs = socket.socketpair()
        with self._lock, theirs:
            self._await_ready()
            try:
                socket.send_fds(self._control, [b"f"], [theirs.fileno()])
                answer = self._control.recv(8)
            except OSError:
                answer = b""
        if len(answer) != 8:
            ours.close()
            raise WorkerStartError(
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
    """One forked process and the connection to it; forks anew after a crash, a time-out or many jobs."""

    def __init__(self, zygote: Zygote, setup: WorkerSetup) -> None:
        self._zygote = zygote
        self._setup = setup
        self._pid: int | None = None
        self._connection: Connection | None = None
        self._jobs = 0

    def call(self, job: str, args: tuple[Any, ...], timeout: float) -> JobResult:
        """Do one job; blocks for at most about `timeout` seconds, `_IDLE_PATIENCE` times that on an idle worker."""
        if self._connection is None:
            self._start()
        self._jobs += 1
        result = self._exchange(job, args, timeout)
        if result.error in ("timeout", "crash") or self._jobs >= _JOBS_PER_WORKER:
            self.stop()
        return result

    def _start(self) -> None:
        self._pid, self._connection = self._zygote.fork()
        self._jobs = 0
        ready = self._exchange("set_up", (self._setup,), _START_SECONDS)
        if ready.error is not None:
            self.stop()
            raise WorkerStartError(
                f"a worker could not be set up: {ready.message}",
                remedy="run `tchub doctor`; a container may forbid pinning cores or limiting memory",
            )

    def _exchange(self, job: str, args: tuple[Any, ...], timeout: float) -> JobResult:
        assert self._connection is not None
        patience = timeout * (_IDLE_PATIENCE if self._setup.idle else 1.0)
        try:
            self._connection.send((job, args))
            if not self._connection.poll(patience):
                return JobResult(error="timeout", message=f"killed after {patience:g} s")
            answer = self._connection.recv()
        except (EOFError, OSError) as error:
            return JobResult(error="crash", message=f"the worker process died ({type(error).__name__})")
        if answer[0]:
            return JobResult(value=answer[1])
        return JobResult(error="exception", message=f"{answer[1]}: {answer[2]}")

    def stop(self) -> None:
        """Kill the process; the next job gets a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError):  # it ended by itself
                os.kill(self._pid, signal.SIGKILL)
            self._pid = None


class WorkerPool:
    """Several workers behind one queue; each job runs on the first free worker."""

    def __init__(self, zygote: Zygote, setups: list[WorkerSetup]) -> None:
        self._free: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        self._workers = [Worker(zygote, setup) for setup in setups]
        for worker in self._workers:
            self._free.put(worker)
        self._threads = ThreadPoolExecutor(len(setups), thread_name_prefix="tchub-worker")

    def submit(self, job: str, args: tuple[Any, ...], timeout: float) -> Future[JobResult]:
        """Queue a job; the future never raises for what the job did."""
        return self._threads.submit(self._run, job, args, timeout)

    def _run(self, job: str, args: tuple[Any, ...], timeout: float) -> JobResult:
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
