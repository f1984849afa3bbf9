"""Ctrl-C during tuning.

A KeyboardInterrupt raised inside a callback reaches TVM's C++ code and comes out as a nameless RuntimeError,
half a batch lost. So the first Ctrl-C only sets a flag, which the session and the cost model look at; a
second one interrupts the usual way.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class StopFlag:
    """A context in which SIGINT and SIGTERM ask the session to stop at the next safe point."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._previous: dict[int, Any] = {}

    @property
    def requested(self) -> bool:
        """Whether somebody asked to stop."""
        return self._event.is_set()

    def request(self) -> None:
        """Ask to stop."""
        self._event.set()

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.requested:
            self._restore()
            raise KeyboardInterrupt
        self.request()

    def _restore(self) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)
        self._previous = {}

    def __enter__(self) -> StopFlag:
        if threading.current_thread() is threading.main_thread():  # Python allows handlers nowhere else
            for signum in (signal.SIGINT, signal.SIGTERM):
                self._previous[signum] = signal.signal(signum, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._restore()
