"""Adapting networks other than TCL: their own size, context from measured programs, and trees that cannot learn."""

from __future__ import annotations

from pathlib import Path

import pytest
from adapt_kit import Lab, other_base, run
from tchub.hub.registry import Registry
from tchub.zoo.adapt import NotTrainableError
from tchub.zoo.models import Checkpoint


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


def test_trees_are_refused_before_anything_is_measured(tmp_path: Path):
    lab = Lab()
    with pytest.raises(NotTrainableError, match="trees"):
        run(other_base("lightgbm", "statements-cpu"), lab, tmp_path)
    assert lab.opened == 0
