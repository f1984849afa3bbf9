"""Adapting networks other than TCL: their own size, context from measured programs, and trees that cannot learn."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from adapt_kit import Lab, other_base, run
from tchub.hub.adaptation import adapt as adapt_module
from tchub.hub.adaptation.card import local_card
from tchub.hub.adaptation.judge import ContextGain, Judgement, Seen, judge
from tchub.hub.adaptation.tools import Base
from tchub.hub.cli import main
from tchub.hub.cli.tune import tune_command
from tchub.hub.registry import Registry
from tchub.zoo.adapt import fresh
from tchub.zoo.models import Checkpoint, Ensemble, create
from tchub.zoo.training import RankingDataset


def test_other_networks_learn_too_and_are_stored_with_their_size(tmp_path: Path):
    result = run(other_base("tlp", "tlp-cpu", hidden=32), Lab(), tmp_path)
    assert result.after["pairwise"] > result.before["pairwise"]
    assert result.zero_shot is None
    assert result.name == "tlp-epyc+local"
    stored = Checkpoint.load(result.path)
    assert stored.config.training["parameters"] == stored.model.parameter_count()
    assert Registry.default().resolve(result.name).entry.parameters == stored.model.parameter_count()


def test_a_model_of_context_is_judged_with_the_programs_learnt_from_and_both_figures_are_told(tmp_path: Path):
    result = run(
        other_base("tilenet", "nest-cpu", hidden=32, embedding=8), Lab(), tmp_path, budget=60, programs_per_task=40
    )
    assert result.zero_shot is not None
    before, after = (result.zero_shot[when]["pairwise"] for when in ("before", "after"))
    assert after > before, "the weights have learnt"
    assert result.guard.base == pytest.approx(result.before["pairwise"])
    assert result.guard.base > before, "context alone tells an untrained model much, and that is not the weights' gain"
    assert result.context is not None
    assert result.context.given == pytest.approx(result.guard.adapted if result.adapted else result.guard.base)
    assert (result.context.harms, result.update) == (False, "auto")


def test_a_committee_is_stored_as_one_checkpoint_and_adapted_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fresh, "LEAST_STEPS", 60)
    base = other_base("tlp", "tlp-cpu", hidden=32)
    result = run(base, Lab(), tmp_path / "one", method="committee", sampler="strata")
    assert result.adapted, "the base is untrained"
    stored = Checkpoint.load(result.path)
    assert (stored.config.arch, stored.config.lineage["method"]) == ("tlp-ensemble", "committee")
    assert isinstance(stored.model, Ensemble)
    assert stored.config.training["parameters"] == 2 * base.checkpoint.model.parameter_count()
    assert "| method | committee" in (result.path / "README.md").read_text()
    again = run(
        Base(stored, Registry.default().resolve(result.name).entry), Lab(), tmp_path / "two", budget=40, seed=3,
        method="auto", programs_per_task=24,
    )  # fmt: skip
    assert again.learning["method"] == "few-shot"
    assert "of the kind ensemble" in next(t["missing"] for t in again.learning["tried"] if t["method"] == "committee")


def make_judged(context: list[float]) -> Judgement:
    """Base and adapted model, which rank 30 held-out programs rightly without context."""
    latency = np.random.default_rng(0).permutation(np.geomspace(1e-3, 1e-1, 30))
    held = RankingDataset(latency[:, None, None], latency, np.arange(30) % 3, ("a", "b", "c"), np.ones(3))
    models = []
    for factor in context:
        model = create("tilenet", width=1, hidden=4, embedding=2)
        model.score = lambda x: -x[:, 0, 0]
        model.score_given = lambda x, *_, factor=factor: -factor * x[:, 0, 0]
        models.append(Seen(model, held.features, held.features))
    return judge(*models, held, held, learnt_gain=None, seed=0)


@pytest.mark.parametrize(
    ("context", "decision", "harms"),
    [((1, 1), "kept", False), ((-1, -1), "kept", True), ((-1, 1), "adapted", False), ((1, -1), "kept", False)],
)
def test_context_that_harms_the_chosen_model_beyond_doubt_is_told(context, decision: str, harms: bool):
    judged = make_judged(context)
    assert judged.guard.decision == decision
    assert judged.context is not None
    assert judged.context.harms is harms
    assert judged.context.without == 1
    assert judged.context.given == (0 if harms else 1)


def test_context_that_harms_is_in_the_card_the_verdict_and_the_next_command(
    adapted, monkeypatch: pytest.MonkeyPatch, capsys
):
    result, *_ = adapted
    harm = ContextGain(0.933, 0.656, (-0.4, -0.1), 0.9)
    told = replace(result, context=harm)
    assert told.as_dict()["update"] == "none"
    monkeypatch.setattr(adapt_module, "adapt", lambda *_, **__: told)
    assert main(["adapt", "tcl-epyc"]) == 0
    shown = capsys.readouterr()
    assert "0.933 without" in shown.out
    (hint,) = [line for line in shown.err.splitlines() if line.startswith("next: ")]
    _, _, *arguments = shlex.split(hint.removeprefix("next: "))
    assert tune_command.make_context("tune", list(arguments)).params["update"] == "none"
    lineage = Checkpoint.load(result.path).config.lineage
    judgement = Judgement(result.guard, result.before, result.after, None, harm)
    facts = {"name": "tcl-epyc+local", "version": "1.0.0", "data_licence": "CC0-1.0"}
    card = local_card(lineage | facts, judgement)
    assert "`--update none` | pairwise 0.933 without" in card


@pytest.mark.parametrize(("decision", "named"), [("kept", "runs/my base"), ("adapted", "tcl-epyc+local")])
def test_the_next_command_tunes_with_the_base_as_it_was_named_or_with_the_result(
    adapted, monkeypatch: pytest.MonkeyPatch, capsys, decision: str, named: str
):
    result, *_ = adapted
    told = replace(result, guard=replace(result.guard, decision=decision), name="tcl-epyc+local")
    monkeypatch.setattr(adapt_module, "adapt", lambda *_, **__: told)
    assert main(["adapt", "runs/my base"]) == 0
    (hint,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("next: ")]
    _, _, *arguments = shlex.split(hint.removeprefix("next: "))
    assert tune_command.make_context("tune", list(arguments)).params["checkpoint"] == named
