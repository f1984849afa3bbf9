"""Which core compiles and which one times, and whether this machine can measure at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

from .errors import NoCompilerError
from .worker import WorkerSetup


def cores() -> list[int]:
    """Cores that this process may use."""
    return sorted(os.sched_getaffinity(0))


def real_time_granted() -> bool:
    """Whether this process may ask for real-time priority; asks, and gives it back."""
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        return False
    os.sched_setscheduler(0, *before)
    return True


def plan_workers(
    available: Sequence[int], threads: int, memory: int, real_time: bool | None = None
) -> tuple[list[WorkerSetup], WorkerSetup, bool]:
    """Builders, the runner, and whether builds may go on while a program is timed.

    With more cores than threads, the last `threads` cores time programs; each other core compiles, and the
    measuring cores compile as well while they idle. A timed program with real-time priority takes its core at once;
    where that is not granted, the builders of its core are SCHED_IDLE, which yields to it. With no core to spare, a
    batch is built first and timed after.

    Args:
        memory: address space of a worker in bytes.
        real_time: whether real-time priority is granted; by default the system is asked.
    """
    overlap = len(available) > threads
    granted = real_time_granted() if real_time is None else real_time
    runner = WorkerSetup(tuple(available[-threads:]), urgent=overlap, threads=threads, memory_bytes=memory)
    yielding = set(available[-threads:]) if overlap and not granted else set()
    builders = [WorkerSetup((core,), idle=core in yielding, memory_bytes=memory) for core in available]
    return builders, runner, overlap


def check_compiler() -> None:
    """Raises NoCompilerError when no C compiler can link what TVM builds."""
    if not any(shutil.which(name) for name in (os.environ.get("CXX", ""), "g++", "clang++", "c++", "gcc", "cc")):
        raise NoCompilerError(
            "no C compiler was found, and TVM needs one to link programs",
            remedy="install gcc or clang (Debian: apt-get install g++), or set CXX",
        )
