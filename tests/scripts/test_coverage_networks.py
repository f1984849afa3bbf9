"""A sample of the coverage benchmark: networks as users bring them compile, and agree with the original, untuned."""

from __future__ import annotations

from pathlib import Path

import pytest
from tchub.hub.networks import latency, latency_worker

from scripts.benchmarks.coverage.networks import SAMPLE, networks
from scripts.benchmarks.coverage.one import compiled


@pytest.mark.parametrize("name", SAMPLE)
def test_a_network_as_it_is_brought_compiles_and_computes_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    # The process that runs the library starts in four seconds; these libraries are no danger to this one.
    monkeypatch.setattr(latency, "_ask", lambda request, *_: latency_worker.answer(request))
    source, arguments = networks()[name].bring(tmp_path)
    checks = compiled(source, arguments, name)["output_check"]
    assert {check["verdict"] for check in checks.values()} == {"equal"}
    # One library for each size that a dynamic shape is asked for.
    assert len(checks) == (2 if name == "perceptron-batch.pt2" else 1)
