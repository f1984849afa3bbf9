"""Round 0, before there is a label: at random, or by what the pretrained base says of the programs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from adapt_kit import Lab, run
from tchub.hub.adaptation.first import asks_base, first_sampler
from tchub.hub.adaptation.tools import Base
from tchub.hub.cli import main
from tchub.zoo.adapt.sampling import SAMPLERS, Ask, Pool, RDUPlusSampler, Selection, StrataSampler, create_sampler
from tchub.zoo.adapt.view import ModelView


@pytest.mark.parametrize("name", sorted(SAMPLERS))
def test_only_the_samplers_that_look_at_programs_ask_the_base(name: str):
    """The others start as their papers do."""
    first = first_sampler(create_sampler(name))
    assert asks_base(first) == (name in ("strata", "rdu+"))
    assert first.name == {"strata": "strata", "rdu+": "strata", "random": "random"}.get(name, "stratified")


def test_the_first_batch_spreads_over_the_scores_of_each_task_as_the_base_gives_them(
    base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    views: list[tuple[int, ModelView | None, Pool, Selection]] = []
    real = StrataSampler.select

    def watched(self, pool, labeled, k, view, rng, *, round=1):
        chosen = real(self, pool, labeled, k, view, rng, round=round)
        views.append((round, view, pool, chosen))
        return chosen

    monkeypatch.setattr(StrataSampler, "select", watched)
    result = run(base, Lab(), tmp_path, sampler="rdu+", budget=60, programs_per_task=24)
    ((round_, view, pool, chosen),) = views
    assert round_ == 0
    assert result.first_sampler == "strata"
    assert view is not None
    assert view.labeled.size == 0
    assert view.features is not None
    np.testing.assert_array_equal(view.scores, base.checkpoint.model.score(view.features))
    assert {pool.ops[task] for task in pool.task[chosen.indices]} == {"conv2d", "matmul", "softmax"}
    first = [pick for pick in result.picks if pick.round == 0]
    assert len(first) == len(chosen.indices)
    assert all(pick.total is None for pick in first)


@pytest.mark.parametrize(("workload", "to_rank"), [("toy", True), ("reference", False)])
def test_a_networks_tasks_are_to_be_ranked_and_a_suites_stand_for_others(
    base: Base, tmp_path: Path, workload: str, to_rank: bool
):
    """By which `rdu+` keeps all tasks level, or fills some of them."""
    pools: list[Pool] = []

    class Watched(RDUPlusSampler):
        def pick(self, ask: Ask) -> Selection:
            pools.append(ask.pool)
            return super().pick(ask)

    run(base, Lab(), tmp_path, sampler=Watched(), workload=workload, budget=60, programs_per_task=24)
    assert [pool.to_rank for pool in pools] == [to_rank]


def test_the_help_names_every_sampler(capsys):
    assert main(["adapt", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert all(name in shown for name in SAMPLERS)
