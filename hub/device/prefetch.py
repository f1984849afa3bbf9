"""Make the next items in a thread while the present ones are measured."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
_POLL_SECONDS = 0.2


def prefetch(items: Iterable[T], size: int) -> Iterator[T]:
    """Yield `items`, made up to `size` ahead by a thread; an exception of `items` is raised here, in its place.

    Worth it for candidates: TVM's search runs outside the interpreter's lock, so workers stay busy meanwhile.
    The thread ends when the iterator is closed.
    """
    ready: queue.Queue[tuple[bool, T | BaseException | None]] = queue.Queue(size)
    closed = threading.Event()

    def put(entry: tuple[bool, T | BaseException | None]) -> bool:
        while not closed.is_set():
            try:
                ready.put(entry, timeout=_POLL_SECONDS)
            except queue.Full:
                continue
            return True
        return False

    def fill() -> None:
        try:
            for item in items:
                if not put((True, item)):
                    return
            put((False, None))
        except BaseException as error:  # carried to the reader, which raises it
            put((False, error))

    thread = threading.Thread(target=fill, name="tchub-prefetch", daemon=True)
    thread.start()
    try:
        while True:
            more, item = ready.get()
            if not more:
                if isinstance(item, BaseException):
                    raise item
                return
            yield item  # type: ignore[misc]
    finally:
        closed.set()
        thread.join()
