"""Adapting to another target of this machine: its own hardware row, its own corpus, its own measurements."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest
from adapt_kit import Lab, run
from tchub.hub.tuning.adapt_tools import Base
from tchub.hub.tuning.device_choice import ChosenDevice, parse_target
from tchub.zoo.corpus import Corpus
from tchub.zoo.models import Checkpoint


@pytest.mark.skipif(platform.machine() != "x86_64", reason="levels of x86-64")
def test_two_targets_share_a_folder_and_no_measurement(
    base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Lab()
    monkeypatch.setattr(ChosenDevice, "measurer", lambda self, config: lab.open(self.facts.target, config.threads))
    levels = ("x86-64", "x86-64-v2")
    results = {name: run(base, lab, tmp_path, target=parse_target(name), sampler="random") for name in levels}
    assert [result.reused for result in results.values()] == [0, 0]
    assert len(lab.measured) == sum(result.measured for result in results.values())
    assert len({result.corpus for result in results.values()}) == 2
    for name, result in results.items():
        assert Corpus.open(result.corpus).meta["target"] == {"kind": "llvm", "mcpu": name, "num-cores": 1}
        assert result.path is not None, "the untrained base learns"
        device = Checkpoint.load(result.path).device
        assert device is not None
        assert (device.target["mcpu"], device.spec.values()["simd_bytes"]) == (name, 16)
    again = run(base, lab, tmp_path, target=parse_target(levels[0]), sampler="random")
    assert again.reused == results[levels[0]].measured
