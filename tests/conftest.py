"""What every test starts from, whatever started the suite: random examples, threads, Ctrl-C.

Hypothesis draws the same examples in every run, so that only a change of the code can fail the suite.
`HYPOTHESIS_PROFILE=explore scripts/test` draws new ones, ten times as many: for looking for failures.
"""

from __future__ import annotations

import errno
import gc
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# Before PyTorch is loaded: the models of tests are small, and two threads on busy cores take several times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# No deadline: on a busy machine any example may be slow.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=1000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))
# `nohup scripts/test &` starts its programs with SIGINT ignored, which they and their children inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Keep what was imported and collected out of garbage collections, which take a tenth of the time otherwise."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A function that lets a call, by its dotted name, fail as on a full disk from then on."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return lambda call: monkeypatch.setattr(call, refuse)


@pytest.fixture(scope="session")
def zygote() -> Iterator[Any]:
    """One import of TVM for the workers of all tests; a test that ends a zygote starts its own."""
    from tchub.hub.device.pool import Zygote

    zygote = Zygote()
    yield zygote
    zygote.close()


@pytest.fixture
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zygote: Any) -> Any:
    """A T4 of paper: a `PaperCard`."""
    from paper_card import PaperCard

    monkeypatch.setattr("tchub.hub.device.measure.Zygote", lambda: zygote)
    monkeypatch.setattr(zygote, "close", lambda: None)
    return PaperCard.install(tmp_path / "card", monkeypatch)
