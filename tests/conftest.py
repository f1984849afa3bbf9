"""What every test starts from, whatever started the suite: random examples, threads, Ctrl-C.

Hypothesis draws the same examples in every run, so that only a change of the code can fail the suite.
`HYPOTHESIS_PROFILE=explore scripts/test` draws new ones, twenty times as many: for looking for failures.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# What is imported and collected stays: to look for garbage among it takes a tenth of the time.
gc.set_threshold(50_000, 20, 20)
# Before PyTorch is loaded: the models of tests are small, and two threads on busy cores take several times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# No deadline: on a busy machine any example may be slow.
settings.register_profile("steady", max_examples=50, derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=1000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))
# `nohup scripts/test &` starts its programs with SIGINT ignored, which they and their children inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Keep what was imported and collected out of garbage collections, which take a tenth of the time otherwise."""
    if "tchub.hub.networks.exported_file" in sys.modules:
        import_module("torch.export.pt2_archive._package")  # much of what an export imports
    gc.collect()
    gc.freeze()
    if exporting := sys.modules.get("torch._export.utils"):
        # PyTorch looks up each of its operators twice an export, a sixth of the time that a small network takes.
        exporting._materialize_cpp_cia_ops = cache(exporting._materialize_cpp_cia_ops)


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


@pytest.fixture(scope="module")
def shared_zygote(zygote: Any) -> Iterator[Any]:
    """The zygote of all tests, wherever tchub would start one of its own: TVM takes seconds to import."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("device.measure", "device.rpc", "bundle.build"):
            patch.setattr(f"tchub.hub.{module}.Zygote", lambda: zygote)
        patch.setattr(zygote, "close", lambda: None)
        yield zygote


@pytest.fixture
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared_zygote: Any) -> Any:
    """A T4 of paper: a `PaperCard`."""
    from paper_card import PaperCard

    return PaperCard.install(tmp_path / "card", monkeypatch)


@pytest.fixture(scope="session")
def pt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported program of a tiny network with two outputs."""
    import torch
    from tiny_network import Tiny

    path = tmp_path_factory.mktemp("network") / "tiny.pt2"
    torch.export.save(torch.export.export(Tiny().eval(), (torch.randn(16, 24),)), path)
    return path


@pytest.fixture
def without_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write reports without charts, which take two seconds."""
    monkeypatch.setattr("tchub.hub.tuning.charts.svg_text", lambda figure: "<svg></svg>")


@pytest.fixture
def compared_here(monkeypatch: pytest.MonkeyPatch, without_charts: None) -> None:
    """Run compiled networks in this process, timed briefly: one of their own takes four seconds."""
    from tchub.hub.networks import latency
    from tchub.hub.tuning import remote_latency

    monkeypatch.setattr(latency, "_ask", lambda text, module, *_: import_module(module).answer(json.loads(text())))
    monkeypatch.setattr(latency, "_REPEAT_SECONDS", 1e-4)
    monkeypatch.setattr(remote_latency, "REPEATS", 2)
