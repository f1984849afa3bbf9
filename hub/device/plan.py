"""Which core compiles and which one times, and whether this machine can measure at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

from .errors import NoCompilerError
from .worker import WorkerSetup


def cores() -> list[int]:
    """Logical CPUs that this process may use."""
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


def timing_cpus(physical: Sequence[Sequence[int]], threads: int) -> list[int]:
    """Return the CPUs for the threads of a program: one of each of the last cores, unless it has more threads.

    Args:
        physical: the CPUs of each physical core, see `physical_cores`.
    """
    if threads <= len(physical):
        return [core[0] for core in physical[-threads:]]
    return sorted(cpu for core in physical for cpu in core)[-threads:]


def plan_workers(
    physical: Sequence[Sequence[int]], threads: int, memory: int, real_time: bool | None = None
) -> tuple[list[WorkerSetup], WorkerSetup, bool]:
    """Builders, the runner, and whether builds may go on while a program is timed.

    With more physical cores than threads, the last `threads` cores time programs; each other CPU compiles, and the
    measuring CPUs compile as well while they idle, but not those that share a core with them. A timed program with
    real-time priority takes its core at once; where that is not granted, the builders of its core are SCHED_IDLE, which
    yields to it. With no core to spare, a batch is built first, on every CPU, and timed after.

    Args:
        physical: the CPUs of each physical core, see `physical_cores`.
        memory: address space of a worker in bytes.
        real_time: whether real-time priority is granted; by default the system is asked.
    """
    timing = timing_cpus(physical, threads)
    overlap = len(physical) > threads
    granted = real_time_granted() if real_time is None else real_time
    runner = WorkerSetup(tuple(timing), urgent=overlap, threads=threads, memory_bytes=memory)
    building = sorted(cpu for core in physical for cpu in core)
    if overlap:
        shared = {cpu for core in physical[-threads:] for cpu in core} - set(timing)
        building = [cpu for cpu in building if cpu not in shared]
    yielding = set(timing) if overlap and not granted else set()
    builders = [WorkerSetup((cpu,), idle=cpu in yielding, memory_bytes=memory) for cpu in building]
    return builders, runner, overlap


def check_compiler() -> None:
    """Raises NoCompilerError when no C compiler can link what TVM builds."""
    if not any(shutil.which(name) for name in (os.environ.get("CXX", ""), "g++", "clang++", "c++", "gcc", "cc")):
        raise NoCompilerError(
            "no C compiler was found, and TVM needs one to link programs",
            remedy="install gcc or clang (Debian: apt-get install g++), or set CXX",
        )
