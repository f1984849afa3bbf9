"""A busy machine: time limits that count the work of a process, and a note where others take the cores."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import psutil

from .host_facts import usable_cpus

BUSY_SHARE = 0.4
STALL_SECONDS = 120.0
STARVED = "it got too little of a core"
_LOOK_SECONDS, _LEAST_LOOK = 1.0, 0.05
_NEIGHBOUR_SECONDS = 5.0


@dataclass(frozen=True)
class TimeLimit:
    """Limit after which a process that has something to do is at fault.

    Attributes:
        work: seconds in which it, or a child of it, had a core; None for a process that waits for another machine.
        stall: wall seconds without any work; where `work` is None wall seconds in all.
    """

    work: float | None
    stall: float = STALL_SECONDS


def family_seconds(pid: int, *, children: bool = True) -> dict[int, float]:
    """Return the CPU seconds of a process and of its descendants, compilers among them; nothing for one that is gone.

    Args:
        children: whether to look at its descendants, which takes some milliseconds.
    """
    try:
        process = psutil.Process(pid)
        family = [process, *(process.children(recursive=True) if children else ())]
    except psutil.Error:
        return {}
    return {one.pid: _own_seconds(one) for one in family}


def _own_seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:  # it ended meanwhile; its parent's `children` seconds have what it used
        return 0.0
    return times.user + times.system + times.children_user + times.children_system


class WorkClock:
    """Counts the seconds in which a process had a core: wall time while it computes, on however many threads.

    Attributes:
        worked: these seconds, up to the last `look`.
        seconds: wall seconds up to then; stalled: the last of them without any work.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._began = self._at = self._moved = time.monotonic()
        self._cpu = sum(
            family_seconds(pid, children=False).values()
        )  # most jobs end before the first look at the children
        self.worked = 0.0

    @property
    def seconds(self) -> float:
        return self._at - self._began

    @property
    def stalled(self) -> float:
        return self._at - self._moved

    def look(self) -> None:
        """Read the process's CPU time."""
        now, cpu = time.monotonic(), sum(family_seconds(self._pid).values())
        used = max(0.0, cpu - self._cpu)  # a child that nobody waited for takes its seconds with it
        self.worked += min(used, now - self._at)
        if used > 0.0:
            self._moved = now
        self._at, self._cpu = now, cpu


def wait_for(
    ready: Callable[[float], bool], pid: int, limit: TimeLimit, give_up: Callable[[WorkClock], bool] = lambda _: False
) -> str | None:
    """Wait until a process answers.

    Args:
        ready: waits for at most so many seconds, and returns whether the answer is there.
        give_up: looked at about once a second; true ends the wait too.

    Returns:
        None when the answer is there, else in a few words why the wait ended.
    """
    if limit.work is None:
        return None if ready(limit.stall) else f"no answer within {limit.stall:g} s"
    clock = WorkClock(pid)
    while not ready(max(_LEAST_LOOK, min(_LOOK_SECONDS, limit.work - clock.worked, limit.stall - clock.stalled))):
        clock.look()
        if clock.worked >= limit.work:
            return f"it has used {limit.work:g} s of computing"
        if clock.stalled >= limit.stall:
            return f"it has done nothing for {limit.stall:g} s"
        if give_up(clock):
            return STARVED
    return None


def run_process(
    command: Sequence[str], text: str, env: Mapping[str, str], limit: TimeLimit
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, `text` on its stdin; stdout and stderr are captured.

    Raises:
        TimeoutError: the limit was reached; the process was killed.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=env, text=True) as process:
        pending: list[str | None] = [text]
        answer: list[tuple[str, str]] = []

        def ended(seconds: float) -> bool:
            try:
                answer.append(process.communicate(pending.pop() if pending else None, timeout=seconds))
            except subprocess.TimeoutExpired:
                return False
            return True

        try:
            if (why := wait_for(ended, process.pid, limit)) is not None:
                raise TimeoutError(why)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, *answer[0])


class Neighbours:
    """Says once when other processes take most of the CPUs that this one may use."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._noted = False
        self._before = _spent()

    def look(self) -> None:
        """Look at what was spent since the last look; does nothing within some seconds of it."""
        before = self._before
        if self._noted or time.monotonic() - before.at < _NEIGHBOUR_SECONDS:
            return
        now = self._before = _spent()
        # A process that has ended meanwhile takes its seconds with it: only what the others used is known.
        own = sum(max(0.0, seconds - before.own.get(pid, 0.0)) for pid, seconds in now.own.items())
        share = (now.busy - before.busy - own) / ((now.at - before.at) * usable_cpus())
        if share > BUSY_SHARE:
            self._noted = True
            self._note(
                f"this machine is busy: other processes take {min(share, 1.0):.0%} of its cores; the run goes on, "
                "slower, and latencies are less sure"
            )


@dataclass(frozen=True)
class _Spent:
    """The clock; seconds that the CPUs of this process were busy or stolen; those of its own family, by process."""

    at: float
    busy: float
    own: dict[int, float]


def _spent() -> _Spent:
    mine = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    cpus = [times for cpu, times in enumerate(psutil.cpu_times(percpu=True)) if mine is None or cpu in mine]
    idle = sum(times.idle + getattr(times, "iowait", 0.0) for times in cpus)
    counted = (name for name in cpus[0]._fields if name not in ("guest", "guest_nice"))
    busy = sum(getattr(times, name) for name in counted for times in cpus) - idle
    return _Spent(time.monotonic(), busy, family_seconds(os.getpid()))
