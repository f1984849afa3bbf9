"""Worker processes, and the process that imports TVM once and forks them, so that a new one costs milliseconds.

Run as `python -m tchub.hub.device.worker FD`. It reads requests from the Unix socket FD: each carries the worker's own
socket as a file descriptor and is answered by the worker's process id. It ends when FD closes. A plain fork of the
tuner would copy its threads' locks (torch, OpenMP); this process never starts a thread.
"""

import contextlib
import ctypes
import gc
import os
import resource
import signal
import socket
import sys
from dataclasses import dataclass
from multiprocessing.connection import Connection

from ...zoo.errors import last_line
from .build_jobs import warm_compiler
from .timing import POOL_ENVIRONMENT

# Of `prctl` in Linux.
_PR_SET_PDEATHSIG, _PR_SET_THP_DISABLE = 1, 41


@dataclass(frozen=True)
class WorkerSetup:
    """Settings that a worker applies to itself before its first job.

    Attributes:
        idle: run only when the core has nothing else to do.
        urgent: ask for real-time priority, so that a busy neighbour disturbs the timing less; granted to root only.
            (A nice value would not do: where sessions are scheduled as groups, it starves the session's own builders.)
        memory_bytes: address space at most; an allocation over it fails in the worker alone.
    """

    cpus: tuple[int, ...] | None = None
    idle: bool = False
    urgent: bool = False
    threads: int = 1
    memory_bytes: int | None = None


def set_up(setup: WorkerSetup) -> int:
    """Apply a `WorkerSetup`; returns the process id."""
    os.environ |= {"TVM_NUM_THREADS": str(setup.threads)} | POOL_ENVIRONMENT
    if setup.cpus is not None:
        os.sched_setaffinity(0, setup.cpus)
    if setup.idle:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    if setup.urgent:
        with contextlib.suppress(PermissionError):  # not granted: the timing is the same, only less shielded
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    if setup.memory_bytes is not None:
        resource.setrlimit(resource.RLIMIT_AS, (setup.memory_bytes, setup.memory_bytes))
    return os.getpid()


def _answer_jobs(connection: Connection) -> None:
    """Answer jobs until the other side closes: (True, value) or (False, exception name, message)."""
    while True:
        try:
            job, args = connection.recv()
        except EOFError:
            return
        except (ImportError, AttributeError) as error:  # the job's module is not to be had here
            connection.send((False, type(error).__name__, last_line(error)))
            continue
        try:
            answer = (True, job(*args))
        except Exception as error:
            answer = (False, type(error).__name__, last_line(error))
        connection.send(answer)


def _become_worker(fd: int) -> None:
    """Serve jobs from the socket `fd` until it closes; never returns."""
    # A tuner that is killed closes the zygote's socket; its workers must not finish an endless job alone.
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # NumPy asks for huge pages, which memory that is taken again then has by chance: a program that walks over
    # many pages takes two thirds of the time that it takes in the network.
    prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # compilers and linkers are waited for here
    code = 1
    try:
        _answer_jobs(Connection(fd))
        code = 0
    finally:
        os._exit(code)


def _warm_up() -> None:
    """Import TVM and everything that a build or a run needs, before workers are forked.

    No more than that: PyTorch, which TVM imports where it can, and the intrinsics that MetaSchedule tensorizes with
    would take three quarters of the time, and only who schedules a program uses them.
    """
    sys.modules["torch"] = None  # pyright: ignore[reportArgumentType]
    gc.disable()
    import tvm  # noqa: F401

    warm_compiler()
    gc.collect()
    gc.freeze()  # what was imported is never garbage: collections in the workers need not look at it
    gc.enable()


def main() -> None:
    """Import TVM, then fork a worker for each request."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C belongs to the tuner, which ends its workers itself
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # workers leave no zombies
    control = socket.socket(fileno=int(sys.argv[1]))
    _warm_up()
    control.sendall(b"ready\0\0\0")
    while True:
        request, fds, _, _ = socket.recv_fds(control, 1, 1)
        if not request or not fds:
            return
        pid = os.fork()
        if pid == 0:
            control.close()
            _become_worker(fds[0])
        os.close(fds[0])
        control.sendall(pid.to_bytes(8, "little"))


if __name__ == "__main__":
    main()
