"""Adapting to another target of this machine: its own hardware row, corpus, measurements, and name."""

from __future__ import annotations

import json
import platform
import shlex
from pathlib import Path

import pytest
from adapt_kit import LITTLE, QUICK, Lab, run, toolbox
from hypothesis import given, settings
from hypothesis import strategies as st
from tchub.hub.adaptation import adapt as adapt_module
from tchub.hub.adaptation.name import adapted_name, target_text, variant_of
from tchub.hub.adaptation.tools import Base
from tchub.hub.cli import main
from tchub.hub.cli.tune import tune_command
from tchub.hub.device.device_choice import ChosenDevice, parse_target
from tchub.hub.device.host_facts import usable_cores
from tchub.hub.registry import CheckpointName, Registry
from tchub.zoo.corpus import Corpus
from tchub.zoo.models import Checkpoint

# Two targets that any machine of the architecture can run, with vectors of 16 bytes, and how TVM is told of it.
LEVELS, TRIPLE = {
    "x86_64": (("x86-64", "x86-64-v2"), {}),
    "aarch64": (("generic", "cortex-a72"), {"mtriple": "aarch64-linux-gnu"}),
}[platform.machine()]


def test_two_targets_share_a_folder_and_no_measurement_and_no_name(
    base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Lab()
    monkeypatch.setattr(
        ChosenDevice, "measurer", lambda self, config, note: lab.open(self.facts.target, config.threads, note)
    )
    results = {name: run(base, lab, tmp_path, target=parse_target(name), sampler="random", **LITTLE) for name in LEVELS}
    assert [result.reused for result in results.values()] == [0, 0]
    assert len(lab.measured) == sum(result.measured for result in results.values())
    assert len({result.corpus for result in results.values()}) == 2
    for name, result in results.items():
        target = {"kind": "llvm", "mcpu": name, "num-cores": usable_cores()} | TRIPLE
        assert Corpus.open(result.corpus).meta["target"] == result.target == target
        assert result.path is not None, "the untrained base learns"
        stored = Checkpoint.load(result.path)
        assert stored.device is not None
        assert (stored.device.target["mcpu"], stored.device.spec.values()["simd_bytes"]) == (name, 16)
        assert (result.name, result.version) == (f"tcl-epyc+local-{name}", "1.0.0")
        assert Registry.default().resolve(result.name).entry.lineage["target"] == target
    again = run(base, lab, tmp_path, target=parse_target(LEVELS[0]), sampler="random", **LITTLE)
    assert again.reused == results[LEVELS[0]].measured
    assert (again.name, again.version) == (f"tcl-epyc+local-{LEVELS[0]}", "1.0.1")


def test_names_say_what_was_asked_for():
    assert variant_of() == "local"
    assert variant_of(threads=1) == "local-1t"
    assert variant_of({"kind": "llvm", "mcpu": "x86-64-v2", "num-cores": 4}, 4) == "local-x86-64-v2-4t"
    assert variant_of(key="Pi 4") == "local-pi-4"
    assert adapted_name("tcl-epyc+local-2t", "local") == "tcl-epyc+local", "a variant of a variant is one of the first"
    assert target_text({"kind": "llvm", "mcpu": "znver5"}, 2) == "znver5, 2 threads"


TARGETS = st.fixed_dictionaries(
    {"kind": st.just("llvm")},
    optional={"mcpu": st.text(max_size=80), "mattr": st.lists(st.sampled_from(["+avx2", "+avx512f"]), min_size=1)},
)


@settings(max_examples=60, deadline=None)
@given(TARGETS, st.integers(1, 512), st.none() | st.text(min_size=1, max_size=80))
def test_every_target_has_a_name_that_can_be_read(target: dict, threads: int, key: str | None):
    name = adapted_name("tcl-epyc", variant_of(target, threads, key))
    assert CheckpointName.parse(name).name == name


def test_targets_of_one_cpu_and_other_extensions_have_other_names():
    targets = [{"kind": "llvm", "mcpu": "x86-64-v3"} | more for more in ({}, {"mattr": ["+avx512f"]}, {"opt-level": 1})]
    assert len({variant_of(target) for target in targets}) == 3


def test_the_next_command_tunes_for_the_target_and_threads_that_were_adapted_to(
    base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    lab = Lab()
    monkeypatch.setattr(
        ChosenDevice, "measurer", lambda self, config, note: lab.open(self.facts.target, config.threads, note)
    )
    monkeypatch.setattr(adapt_module, "Tools", lambda: toolbox(base, lab))
    monkeypatch.setattr(adapt_module, "FineTuneConfig", lambda: QUICK)
    monkeypatch.setattr(adapt_module, "usable_cores", lambda: 4)
    target = json.dumps({"kind": "llvm", "mcpu": LEVELS[1]})
    args = ["adapt", "tcl-epyc", "--budget", "90", "--pool", "40", "--rounds", "1", "--work-dir", str(tmp_path)]
    assert main([*args, "--workload", "toy", "--target", target, "--threads", "2"]) == 0
    shown = capsys.readouterr()
    assert f"programs for {LEVELS[1]}, 2 threads" in shown.out
    (hint,) = [line for line in shown.err.splitlines() if line.startswith("next: ")]
    tchub, tune, *rest = shlex.split(hint.removeprefix("next: "))
    assert (tchub, tune) == ("tchub", "tune")
    options = tune_command.make_context("tune", list(rest)).params
    assert options["checkpoint"] == f"tcl-epyc+local-{LEVELS[1]}-2t"
    assert (parse_target(options["target"]), options["threads"]) == (parse_target(target), 2)
