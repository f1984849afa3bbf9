"""A sample of the coverage benchmark: networks as users bring them compile, and agree with the original, untuned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from script_kit import scripts_fixture
from tchub.hub.networks import latency, latency_worker

SAMPLE = (
    "gpt2", "llama.pt2", "roberta", "lstm-state", "transformer-encoder", "decode-step", "unet", "detector", "top-k",
    "text-and-numbers", "bfloat16", "perceptron-batch.pt2", "mlp-mixer.onnx",
)  # fmt: skip

tools = scripts_fixture(run="benchmarks.coverage.one", networks="benchmarks.coverage.networks")


def test_the_sample_is_that_of_the_script(tools: Any) -> None:
    assert tools["networks"].SAMPLE == SAMPLE


@pytest.mark.parametrize("name", SAMPLE)
def test_a_network_as_it_is_brought_compiles_and_computes_the_same(
    tools: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    # The process that runs the library starts in four seconds; these libraries are no danger to this one.
    monkeypatch.setattr(latency, "_ask", lambda request, *_: latency_worker.answer(request))
    source, arguments = tools["networks"].networks()[name].bring(tmp_path)
    found = tools["run"].compiled(source, arguments, name)
    assert {check["verdict"] for check in found["output_check"].values()} == {"equal"}
    # One library for each size that a dynamic shape is asked for.
    assert len(found["output_check"]) == (2 if name == "perceptron-batch.pt2" else 1)
