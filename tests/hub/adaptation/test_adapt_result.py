"""The verdict of the hold-out, the checkpoint's card and name, and what the command line makes of a result."""

import json
import platform
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adapt_kit import LITTLE, Lab, LabDevice, run, toy_world
from hypothesis import given
from hypothesis import strategies as st
from tchub.hub.adaptation import adapt as adapt_module
from tchub.hub.adaptation.config import adapted_name, variant_of
from tchub.hub.adaptation.record import local_card
from tchub.hub.api import CheckpointChoice
from tchub.hub.cli import main
from tchub.hub.cli.tune import tune_command
from tchub.hub.device.device_choice import ChosenDevice, parse_target
from tchub.hub.device.host_facts import usable_cores
from tchub.hub.registry import CheckpointName, Registry
from tchub.zoo.adapt.guard import AccuracyChange, Judgement, ModelFeatures, judge
from tchub.zoo.corpus import Corpus
from tchub.zoo.models import Checkpoint, create
from tchub.zoo.training import RankingDataset

# Two targets that any machine of the architecture can run, with vectors of 16 bytes, and how TVM is told of it.
LEVELS, TRIPLE = {
    "x86_64": (("x86-64", "x86-64-v2"), {}),
    "aarch64": (("generic", "cortex-a72"), {"mtriple": "aarch64-linux-gnu"}),
}[platform.machine()]


def make_judged(context: tuple[int, int], trusted: tuple[Any, Any] = (None, None)) -> Judgement:
    """Base and adapted model, which rank 30 held-out programs rightly without context; `trusted` as (T,) or None."""
    latency = np.random.default_rng(0).permutation(np.geomspace(1e-3, 1e-1, 30))
    held = RankingDataset(latency[:, None, None], latency, np.arange(30) % 3, ("a", "b", "c"), np.ones(3))
    models = []
    for factor, tasks in zip(context, trusted, strict=True):
        model = create("tilenet", width=1, hidden=4, embedding=2)
        model.score = lambda x: -x[:, 0, 0]
        model.score_given = lambda x, *_, factor=factor: -factor * x[:, 0, 0]
        models.append(ModelFeatures(model, held.features, held.features, tasks))
    return judge(*models, held, held, gain=None, seed=0)


@pytest.mark.parametrize(
    ("context", "decision", "harms"),
    [((1, 1), "kept", False), ((-1, -1), "kept", True), ((-1, 1), "adapted", False), ((1, -1), "kept", False)],
)
def test_context_that_harms_the_chosen_model_beyond_doubt_is_told(context, decision: str, harms: bool):
    judged = make_judged(context)
    assert judged.guard.decision == decision
    assert judged.context is not None
    assert judged.context.fell is harms
    assert (judged.context.before, judged.context.after) == (1, 0 if harms else 1)


def test_models_are_judged_by_the_scores_that_tuning_gets_of_them():
    """The base is wrong in context, and trusted on one task; trees of the measured programs rank the others."""
    judged = make_judged((-1, 1), (np.array([True, False, False]), np.array([True, True, False])))
    assert (judged.guard.base, judged.guard.adapted) == pytest.approx((2 / 3, 1))
    assert judged.zero_shot is not None
    assert [judged.zero_shot[when]["pairwise"] for when in ("before", "after")] == pytest.approx([2 / 3, 5 / 6])


def next_options(shown: str) -> dict[str, Any]:
    """The options of the `tchub tune` that is printed as the next command."""
    (hint,) = [line for line in shown.splitlines() if line.startswith("next: ")]
    _, _, *arguments = shlex.split(hint.removeprefix("next: "))
    return tune_command.make_context("tune", list(arguments)).params


@pytest.mark.parametrize(
    ("decision", "context", "option", "value"),
    [
        ("kept", None, "checkpoint", "runs/my base"),
        ("adapted", None, "checkpoint", "tcl-epyc+local"),
        ("adapted", AccuracyChange(0.933, 0.656, (-0.4, -0.1)), "update", "none"),
    ],
    ids=["kept", "adapted", "context harms"],
)
def test_the_next_command_tunes_with_what_was_judged_better(
    adapted, monkeypatch: pytest.MonkeyPatch, capsys, decision: str, context: Any, option: str, value: str
):
    """With the base as it was named or with the result, and without context where it harms, as the card says, too."""
    judgement = adapted[0].judgement
    judgement = replace(judgement, guard=replace(judgement.guard, decision=decision), context=context)
    result = replace(adapted[0], judgement=judgement)
    monkeypatch.setattr(adapt_module, "adapt", lambda *_, **__: result)
    assert main(["adapt", "runs/my base"]) == 0
    shown = capsys.readouterr()
    assert next_options(shown.err)[option] == value
    assert ("0.933 before" in shown.out) == (context is not None)
    card = local_card(result, {"weights_licence": "MIT", "data_licence": "CC0-1.0"})
    assert ("| context | it harms: pairwise 0.933 before" in card) == (context is not None)


def test_the_command_line(base: CheckpointChoice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setattr(adapt_module, "choose_device", lambda *_, **__: LabDevice())
    args = ["adapt", "tcl-epyc", "--budget", "40", "--per-task", "24", "--rounds", "1", "--out", str(tmp_path)]
    with toy_world(base):
        assert main([*args, "--workload", "toy", "--json"]) == 0
        result = json.loads(capsys.readouterr().out)
        assert result["measured"] == 40
        assert result["decision"] in ("adapted", "kept")
        assert main([*args, "--workload", "toy"]) == 0
    shown = capsys.readouterr()
    assert "pairwise" in shown.out
    assert "hold-out: 8 to do\n" in shown.err, "no terminal: a line a phase"
    assert "round 1 of 1: 16 to do\n" in shown.err
    assert f"tchub tune toy --checkpoint {result['name']}" in shown.err
    assert main(["adapt", "--budget", "0"]) == 1
    assert "allows no measurement" in capsys.readouterr().err


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Lab:
    """What measures on this machine, for any target."""
    lab = Lab()
    monkeypatch.setattr(ChosenDevice, "measurer", lambda self, config: lab.open())
    return lab


def test_two_targets_share_a_folder_and_no_measurement_and_no_name(
    base: CheckpointChoice, tmp_path: Path, lab: Lab
) -> None:
    many = LITTLE | {"sampler": "random", "budget": 120, "per_task": 60}  # the gain is clear on every CPU
    results = {name: run(base, lab, tmp_path, target=parse_target(name), **many) for name in LEVELS}
    assert [result.measurements.reused for result in results.values()] == [0, 0]
    assert len(lab.measured) == sum(result.measurements.measured for result in results.values())
    assert len({result.measurements.corpus for result in results.values()}) == 2
    for name, result in results.items():
        target = {"kind": "llvm", "mcpu": name, "num-cores": usable_cores()} | TRIPLE
        assert Corpus.open(result.measurements.corpus).meta["target"] == result.settings.target == target
        assert result.path is not None, "the untrained base learns"
        assert (stored := Checkpoint.load(result.path)).device is not None
        assert (stored.device.target["mcpu"], stored.device.spec.values()["simd_bytes"]) == (name, 16)
        assert (result.name, result.version) == (f"tcl-epyc+local-{name}", "1.0.0")
        assert Registry.default().resolve(result.name).entry.lineage["target"] == target
    again = run(base, lab, tmp_path, target=parse_target(LEVELS[0]), **many)
    assert again.measurements.reused == results[LEVELS[0]].measurements.measured
    assert (again.name, again.version) == (f"tcl-epyc+local-{LEVELS[0]}", "1.0.1")


def test_the_next_command_tunes_for_the_target_and_threads_that_were_adapted_to(
    base: CheckpointChoice, tmp_path: Path, lab: Lab, monkeypatch: pytest.MonkeyPatch, capsys
):
    monkeypatch.setattr(adapt_module, "usable_cores", lambda: 4)
    target = json.dumps({"kind": "llvm", "mcpu": LEVELS[1]})
    args = ["adapt", "tcl-epyc", "--budget", "90", "--per-task", "40", "--rounds", "1", "--out", str(tmp_path)]
    with toy_world(base):
        assert main([*args, "--workload", "toy", "--target", target, "--threads", "2"]) == 0
    shown = capsys.readouterr()
    assert f"programs for {LEVELS[1]}, 2 threads" in shown.out
    options = next_options(shown.err)
    assert options["checkpoint"] == f"tcl-epyc+local-{LEVELS[1]}-2t"
    assert (parse_target(options["target"]), options["threads"]) == (parse_target(target), 2)


def test_names_say_what_was_asked_for():
    assert variant_of() == "local"
    assert variant_of(threads=1) == "local-1t"
    assert variant_of({"kind": "llvm", "mcpu": "x86-64-v2", "num-cores": 4}, 4) == "local-x86-64-v2-4t"
    assert variant_of(key="Pi 4") == "local-pi-4"
    assert adapted_name("tcl-epyc+local-2t", "local") == "tcl-epyc+local", "a variant of a variant is one of the first"
    targets = [{"kind": "llvm", "mcpu": "x86-64-v3"} | more for more in ({}, {"mattr": ["+avx512f"]}, {"opt-level": 1})]
    assert len({variant_of(target) for target in targets}) == 3


TARGETS = st.fixed_dictionaries(
    {"kind": st.just("llvm")},
    optional={"mcpu": st.text(max_size=80), "mattr": st.lists(st.sampled_from(["+avx2", "+avx512f"]), min_size=1)},
)


@given(TARGETS, st.integers(1, 512), st.none() | st.text(min_size=1, max_size=80))
def test_every_target_has_a_name_that_can_be_read(target: dict, threads: int, key: str | None):
    name = adapted_name("tcl-epyc", variant_of(target, threads, key))
    assert CheckpointName.parse(name).name == name
