"""Things that go wrong on purpose, by request."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

_ANY = ""


@dataclass
class Fault:
    """What happens to requests whose `METHOD path` the pattern is found in.

    Attributes:
        times: how often; None for always.
        status: answered in place of the true answer, with `headers`.
        truncate: bytes of the true answer that are left out, though announced, before the connection closes.
        hangs_up: close the connection without a word: `before` the request is carried out, or `after`.
        release: the request waits for this event; `reached` tells that one does.
    """

    pattern: str
    times: int | None = None
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    truncate: int = 0
    hangs_up: str = ""
    release: threading.Event | None = None
    reached: threading.Event = field(default_factory=threading.Event)


class Faults:
    """The faults that are injected now; the newest is looked at first."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._lock = threading.Lock()

    def answer(
        self, status: int, pattern: str = _ANY, *, times: int | None = None, retry_after: int | None = None
    ) -> None:
        """Requests are answered by this status."""
        headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
        self._add(Fault(pattern, times, status, headers))

    def truncate(self, missing: int, pattern: str = _ANY, *, times: int | None = None) -> None:
        """Answers break off before the end."""
        self._add(Fault(pattern, times, truncate=missing))

    def hang_up(self, pattern: str = _ANY, *, when: str = "before", times: int | None = None) -> None:
        """The connection is closed without an answer, `before` or `after` the request was carried out."""
        self._add(Fault(pattern, times, hangs_up=when))

    def stall(self, pattern: str = _ANY, *, times: int | None = None, lost: bool = False) -> Fault:
        """Requests wait until `release.set()` or the end of the server; then they are carried out, or are lost."""
        return self._add(Fault(pattern, times, hangs_up="before" if lost else "", release=threading.Event()))

    def clear(self) -> None:
        """All is well again; whoever waits goes on."""
        with self._lock:
            waiting, self._faults = self._faults, []
        for fault in waiting:
            if fault.release:
                fault.release.set()

    def strike(self, line: str) -> Fault | None:
        """The fault that a request meets, counted."""
        with self._lock:
            for fault in reversed(self._faults):
                if fault.times != 0 and re.search(fault.pattern, line):
                    fault.times = None if fault.times is None else fault.times - 1
                    return fault
        return None

    def _add(self, fault: Fault) -> Fault:
        with self._lock:
            self._faults.append(fault)
        return fault
