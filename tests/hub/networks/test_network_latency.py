"""Latencies of a compiled network beside the original's: the clock, the outputs, and what ends a process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tchub.hub.networks.errors import LatencyError
from tchub.hub.networks.latency import compare, measure
from tchub.hub.networks.rivals import ReferenceNetwork, arrays, rival_runs
from tchub.hub.networks.sources import open_network


@pytest.mark.parametrize(
    ("script", "message"),
    [("echo boom >&2; kill -SEGV $$", "boom"), ("exit 0", "no message"), ("while :; do :; done", "1 s of comput")],
)
def test_a_library_that_crashes_or_hangs_is_an_error(
    tmp_path: Path, pt2: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    (tmp_path / "tuned.so").touch()
    with pytest.raises(LatencyError, match=message):
        compare(open_network(pt2), lambda: {"tuned": python}, timeout=1.0)


@pytest.fixture
def reference(tmp_path: Path, pt2: Path) -> ReferenceNetwork:
    torch.save((torch.ones(16, 24),), tmp_path / "inputs.pt")
    return ReferenceNetwork({"reference": str(pt2), "inputs": str(tmp_path / "inputs.pt")})


def test_pytorchs_own_compiler_is_timed_and_its_failure_is_a_fact(
    reference: ReferenceNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = arrays(reference.run())
    monkeypatch.setattr(torch, "compile", lambda module, mode: module)
    runs, errors = rival_runs(["torch.compile"], reference, expected, 1)
    assert len(runs["torch.compile"]()) == 2
    assert not errors
    monkeypatch.setattr(torch, "compile", lambda module, mode: lambda *args: [x + 1 for x in arrays(module(*args))])
    assert "output is wrong" in rival_runs(["torch.compile"], reference, expected, 1)[1]["torch.compile"]

    def refuse(*_: Any) -> None:
        raise RuntimeError("no compiler\nfound")

    monkeypatch.setattr(torch, "compile", lambda module, mode: refuse)
    assert rival_runs(["torch.compile"], reference, expected, 1) == ({}, {"torch.compile": "RuntimeError: no compiler"})


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_other_runtimes_compute_the_same(reference: ReferenceNetwork, name: str) -> None:
    with torch.inference_mode():
        runs, errors = rival_runs([name], reference, arrays(reference.run()), 1)
    assert not errors
    assert len(arrays(runs[name]())) == 2


def test_systems_take_turns_on_the_clock() -> None:
    order: list[str] = []
    seconds = measure({name: lambda name=name: order.append(name) for name in "ab"}, max_seconds=0.0, min_repeats=5)
    assert {name: len(values) for name, values in seconds.items()} == {"a": 5, "b": 5}
    assert order.index("b") < len(order) - order[::-1].index("a")
