"""Time limits that count the work of a process, so that a busy machine costs time and no program."""

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import psutil

STALL_SECONDS = 120.0
STARVED = "it got too little of a core"
_LOOK_SECONDS, _LEAST_LOOK = 1.0, 0.05


@dataclass(frozen=True)
class TimeLimit:
    """Seconds after which a process that has something to do is at fault.

    `work` are those in which it, or a child of it, had a core; None for a process that waits for another machine.
    `stall` are those by the clock without any work; where `work` is None by the clock in all.
    """

    work: float | None
    stall: float = STALL_SECONDS


def _cpu_seconds(pid: int, *, children: bool = True) -> float:
    """Return the CPU seconds of a process and of its descendants, compilers among them; 0 for one that is gone.

    To look at the descendants takes some milliseconds.
    """
    try:
        process = psutil.Process(pid)
        family = [process, *(process.children(recursive=True) if children else ())]
    except psutil.Error:
        return 0.0
    seconds = 0.0
    for one in family:
        with contextlib.suppress(psutil.Error):  # it ended meanwhile; its parent's `children` seconds have what it used
            times = one.cpu_times()
            seconds += times.user + times.system + times.children_user + times.children_system
    return seconds


class WorkClock:
    """Counts the seconds in which a process had a core: wall time while it computes, on however many threads.

    `worked` are these seconds up to the last `look`, `seconds` those by the clock, `stalled` the last without work.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._began = self._at = self._moved = time.monotonic()
        self._cpu = _cpu_seconds(pid, children=False)  # most jobs end before the first look at the children
        self.worked = 0.0

    @property
    def seconds(self) -> float:
        return self._at - self._began

    @property
    def stalled(self) -> float:
        return self._at - self._moved

    def look(self) -> None:
        """Read the process's CPU time."""
        now, cpu = time.monotonic(), _cpu_seconds(self._pid)
        used = max(0.0, cpu - self._cpu)  # a child that nobody waited for takes its seconds with it
        self.worked += min(used, now - self._at)
        if used > 0.0:
            self._moved = now
        self._at, self._cpu = now, cpu


def wait_for(
    ready: Callable[[float], bool], pid: int, limit: TimeLimit, give_up: Callable[[WorkClock], bool] = lambda _: False
) -> str | None:
    """Wait until a process answers; return None then, else in a few words why the wait ended.

    Args:
        ready: waits for at most so many seconds, and returns whether the answer is there.
        give_up: looked at about once a second; true ends the wait too.
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
    command: Sequence[str], parts: Iterable[str], env: Mapping[str, str], limit: TimeLimit
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, output captured; killed at the limit, which is a TimeoutError.

    Args:
        parts: what the process reads on stdin, each as soon as it is made; the limit counts from the last one on.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=env, text=True) as process:
        assert process.stdin is not None
        answer: list[tuple[str, str]] = []

        def ended(seconds: float) -> bool:
            try:
                answer.append(process.communicate(timeout=seconds))
            except subprocess.TimeoutExpired:
                return False
            return True

        try:
            for part in parts:
                with contextlib.suppress(BrokenPipeError):  # it has ended, and its output says why
                    process.stdin.write(part)
                    process.stdin.flush()
            if (why := wait_for(ended, process.pid, limit)) is not None:
                raise TimeoutError(why)
        except BaseException:
            process.kill()
            with contextlib.suppress(BrokenPipeError):  # a part that it did not read would hide the error
                process.stdin.close()
            raise
    return subprocess.CompletedProcess(command, process.returncode, *answer[0])
