"""Bounds on what a piece of code may take, in this process: memory beyond what it has already, and seconds."""

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType


class TooSlowError(BaseException):
    """The seconds are over. Not an `Exception`, so that nothing which is being bounded takes it for its own."""


@contextmanager
def limited(memory: int, seconds: float) -> Iterator[None]:
    """`limited_memory` and `limited_time` at once."""
    with limited_memory(memory), limited_time(seconds):
        yield


@contextmanager
def limited_memory(memory: int) -> Iterator[None]:
    """Inside, an allocation beyond `memory` bytes is a MemoryError."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + memory, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@contextmanager
def limited_time(seconds: float) -> Iterator[None]:
    """Inside, TooSlowError comes after `seconds`, waiting included; for the main thread."""
    before = signal.signal(signal.SIGALRM, _too_slow)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _too_slow(_number: int, _frame: FrameType | None) -> None:
    raise TooSlowError
