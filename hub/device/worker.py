"""The worker: a forked process that sets itself up and answers jobs (compile a module, run a program)."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

from ...zoo.errors import last_line
from .build_job import build, warm_compiler
from .run_job import ArgsInfo, make_reference, run
from .timing import POOL_ENVIRONMENT, TimingConfig, time_kernel

__all__ = ["ArgsInfo", "TimingConfig", "WorkerSetup", "serve", "set_up", "time_kernel", "warm_up"]


@dataclass(frozen=True)
class WorkerSetup:
    """Settings that a worker applies to itself before its first job.

    Attributes:
        cpus: cores it may run on, or None.
        idle: run only when the core has nothing else to do.
        urgent: ask for real-time priority, so that a busy neighbour disturbs the timing less; granted to root only.
            (A nice value would not do: where sessions are scheduled as groups, it starves the session's own builders.)
        threads: threads of a program.
        memory_bytes: address space at most; an allocation over it fails in the worker alone.
    """

    cpus: tuple[int, ...] | None = None
    idle: bool = False
    urgent: bool = False
    threads: int = 1
    memory_bytes: int | None = None


def warm_up() -> None:
    """Import TVM and everything that a build or a run needs, before workers are forked.

    No more than that: PyTorch, which TVM imports where it can, and the intrinsics that MetaSchedule tensorizes with
    would take three quarters of the time, and only who schedules a program uses them.
    """
    sys.modules["torch"] = None  # pyright: ignore[reportArgumentType]
    import numpy  # noqa: F401
    import tvm  # noqa: F401

    warm_compiler()
    gc.collect()
    gc.freeze()  # what was imported is never garbage: collections in the workers need not look at it


def serve(connection: Connection) -> None:
    """Answer jobs until the other side closes: (True, value) or (False, exception name, message)."""
    while True:
        try:
            job, args = connection.recv()
        except EOFError:
            return
        try:
            answer = (True, _find(job)(*args))
        except Exception as error:
            answer = (False, type(error).__name__, last_line(error))
        connection.send(answer)


def _find(job: str) -> Callable[..., Any]:
    """A job of this module by its name, or one of another module as `package.module:function`."""
    if ":" not in job:
        return _JOBS[job]
    module, _, name = job.partition(":")
    return getattr(import_module(module), name)


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


_JOBS = {"set_up": set_up, "build": build, "run": run, "make_reference": make_reference}
