"""An iterator that can be waited for: whatever hangs, the one who waits goes on after a time of its choice."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


class StalledError(Exception):
    """Nothing came in time; never leaves this package."""


def watched(produce: Callable[[], Iterator[T]], first: float, each: float) -> Iterator[T]:
    """Iterate in a thread of its own and pass on what comes, in order, with the exception that ends it.

    A socket's time-out is of one read alone: a server that sends a byte now and then never meets it, and looking up
    a name has none. A thread that does not come back is left behind; it is a daemon, so it keeps no process alive.

    Args:
        produce: makes the iterator, in the thread.
        first: seconds to wait for the first item.
        each: seconds to wait for every further one.

    Raises:
        StalledError: an item did not come in time.
    """
    events: queue.Queue[tuple[str, Any]] = queue.Queue(maxsize=1)
    left = threading.Event()
    threading.Thread(target=_run, args=(produce, events, left), name="tchub-download", daemon=True).start()
    seconds = first
    try:
        while True:
            try:
                kind, value = events.get(timeout=seconds)
            except queue.Empty:
                raise StalledError(f"nothing came for {seconds:g} s") from None
            if kind == "end":
                return
            if kind == "error":
                raise value
            yield value
            seconds = each
    finally:
        left.set()
        with suppress(queue.Empty):
            events.get_nowait()  # makes room for a thread that waits to put


def within(seconds: float, call: Callable[[], T]) -> T:
    """What a call returns, in a thread of its own; raises StalledError when it takes longer."""
    return next(watched(lambda: iter((call(),)), seconds, seconds))


def _run(produce: Callable[[], Iterator[Any]], events: queue.Queue[tuple[str, Any]], left: threading.Event) -> None:
    try:
        for item in produce():
            events.put(("item", item))
            if left.is_set():
                return
    except BaseException as error:  # whatever it is: nobody shall wait for a thread that is no more
        events.put(("error", error))
    else:
        events.put(("end", None))
