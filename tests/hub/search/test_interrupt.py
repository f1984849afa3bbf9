"""Ctrl-C during tuning: the first asks, the second interrupts."""

import os
import signal
from collections.abc import Iterator

import pytest
from tchub.hub.search.interrupt import StopFlag


def test_the_first_ctrl_c_asks_and_the_second_interrupts() -> None:
    before = signal.getsignal(signal.SIGINT)
    with StopFlag() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_what_items_are_made_from_may_note_a_ctrl_c_that_would_break_off_the_making() -> None:
    def items(stop: StopFlag, reached: list[str]) -> Iterator[str]:
        with stop.noted():
            os.kill(os.getpid(), signal.SIGINT)
            reached.append("the search ends by itself")
        yield "found"

    with StopFlag() as stop:
        reached: list[str] = []
        assert list(stop.each(items(stop, reached))) == ["found"]
        assert reached
        assert stop.requested


def test_a_ctrl_c_that_the_process_was_started_to_ignore_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as by `nohup tchub tune ... &`
    try:
        with StopFlag() as stop:
            os.kill(os.getpid(), signal.SIGINT)
        assert not stop.requested
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
