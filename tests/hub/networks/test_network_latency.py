"""Latencies of a compiled network beside the original's: the clock, the outputs, and what ends a process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tchub.hub.networks.errors import LatencyError
from tchub.hub.networks.latency import Latency, compare, measure
from tchub.hub.networks.latency_worker import ReferenceNetwork, add_compiled, arrays
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
        compare(open_network(pt2), {"tuned": python}, timeout=1.0)


def test_pytorchs_own_compiler_is_timed_and_its_failure_is_a_fact(pt2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: dict[str, Any] = {}
    errors: dict[str, str] = {}
    reference = ReferenceNetwork(str(pt2), [torch.ones(16, 24)])
    monkeypatch.setattr(torch, "compile", lambda module: module)
    add_compiled(runs, reference, errors)
    assert len(runs["torch.compile"]()) == 2

    def refuse(*_: Any) -> None:
        raise RuntimeError("no compiler\nfound")

    monkeypatch.setattr(torch, "compile", lambda module: refuse)
    runs.clear()
    add_compiled(runs, reference, errors)
    assert (runs, errors) == ({}, {"torch.compile": "RuntimeError: no compiler"})


def test_nested_outputs_are_flattened_in_order() -> None:
    output = {"a": (torch.tensor([1.0]), [torch.tensor([2.0])]), "b": torch.tensor([3.0])}
    assert [float(x[0]) for x in arrays(output)] == [1.0, 2.0, 3.0]


def test_systems_take_turns_on_the_clock() -> None:
    order: list[str] = []
    seconds = measure({name: lambda name=name: order.append(name) for name in "ab"}, max_seconds=0.0, min_repeats=5)
    assert {name: len(values) for name, values in seconds.items()} == {"a": 5, "b": 5}
    assert order.index("b") < len(order) - order[::-1].index("a")


def test_a_latency_is_a_median_with_quartiles() -> None:
    latency = Latency((4.0, 1.0, 2.0, 3.0, 100.0))
    assert latency.median == 3.0
    assert latency.quartiles == (2.0, 4.0)
    assert Latency((2.0,)).quartiles == (2.0, 2.0)
