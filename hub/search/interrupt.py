"""Ctrl-C during tuning.

A KeyboardInterrupt raised inside a callback reaches TVM's C++ code and comes out as a nameless RuntimeError,
half a search lost. So the first Ctrl-C only sets a flag, which the session and the cost model look at; a
second one interrupts the usual way. Measuring alone is interrupted at once (`StopFlag.each`): it may take minutes,
and what was measured is kept. A search that goes on meanwhile is not (`StopFlag.noted`).
"""

import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

from .errors import InterruptedRunError

T = TypeVar("T")


class StopFlag:
    """A context in which SIGINT and SIGTERM ask the session to stop at the next safe point.

    A signal that the process was started to ignore, as by `nohup` or a shell's `&`, stays ignored.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self._at_once = False
        self._previous: dict[int, Any] = {}

    @property
    def requested(self) -> bool:
        """Return True once somebody asked to stop."""
        return self._event.is_set()

    def request(self) -> None:
        """Ask to stop."""
        self._event.set()

    def check(self, text: str = "interrupted", **fields: Any) -> None:
        """Raise InterruptedRunError once somebody asked to stop."""
        if self.requested:
            raise InterruptedRunError(text, **fields)

    def each(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items as they come, until somebody asks to stop; the making of the next one is then broken off."""
        source = iter(items)
        while not self.requested:
            try:
                self._at_once = True
                item = next(source)
            except StopIteration:
                return
            except InterruptedRunError:  # says what was going on
                raise
            except (KeyboardInterrupt, Exception):
                if self.requested:  # whatever the interrupt has become on its way, e.g. through TVM
                    return
                raise
            finally:
                self._at_once = False
            yield item

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Let the first Ctrl-C set the flag alone, in what `each` makes its items from too."""
        before, self._at_once = self._at_once, False
        try:
            yield
        finally:
            self._at_once = before

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        again = self.requested
        self.request()
        if again:
            self._restore()
        if again or self._at_once:
            raise KeyboardInterrupt

    def _restore(self) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)
        self._previous = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # Python allows handlers nowhere else
            for signum in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(signum) is not signal.SIG_IGN:
                    self._previous[signum] = signal.signal(signum, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._restore()
