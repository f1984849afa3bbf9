"""Adapting, with a synthetic machine: a latency function stands for compiling and running programs."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from adapt_kit import LITTLE, OPS, QUICK, Lab, run, toolbox
from tchub.hub.adaptation.tools import Base
from tchub.hub.networks.tasks import TuningTask
from tchub.hub.device.candidate import Candidate
from tchub.hub.search.errors import InterruptedRunError
from tchub.zoo.corpus import Corpus
from tchub.zoo.models import Checkpoint
from tchub.zoo.primitives import from_trace_json


def test_a_model_that_ranks_better_is_stored_with_its_lineage(adapted):
    result, _, _, entry = adapted
    assert result.guard.decision == "adapted"
    assert result.after["pairwise"] == pytest.approx(result.guard.adapted)
    assert result.after["pairwise"] > result.before["pairwise"]
    assert (result.name, result.version, result.base) == ("tcl-epyc+local", "1.0.0", "tcl-epyc@1.0.0")
    stored = Checkpoint.load(result.path)
    assert stored.config.lineage["base"] == "tcl-epyc@1.0.0"
    assert stored.config.lineage["gain"] == pytest.approx(result.guard.gain)
    assert stored.config.lineage["measurements"]["programs"] == 90
    assert entry.weights_licence == "Apache-2.0"
    assert "Adapted on this machine" in (result.path / "README.md").read_text()
    assert json.loads((result.path / "metrics.json").read_text())["results"]["base"] == result.before


def test_the_budget_is_spent_and_every_pick_has_its_reason(adapted):
    result, lab, _, _ = adapted
    assert result.pool_size == 360
    assert result.measured == len(lab.measured) == len(set(lab.measured)) == 90
    parts = Counter(pick.part for pick in result.picks)
    assert parts == {"hold-out": 18, "learn": 72}
    assert Counter(pick.round for pick in result.picks if pick.part == "learn") == {0: 18, 1: 18, 2: 18, 3: 18}
    for pick in result.picks:
        assert (pick.total is not None) == (pick.part == "learn" and pick.round > 0)
        assert (pick.latency is None) == (pick.error == "build")
    assert result.failed == sum(pick.error is not None for pick in result.picks) > 0
    assert sum(task.learn + task.hold_out for task in result.tasks) == 90
    by_op = Counter(pick.op for pick in result.picks if pick.part == "learn")
    assert by_op == {"conv2d": 36, "matmul": 24, "softmax": 12}, "as the tasks are: 3, 2, 1"
    assert {"measure", "fine-tune", "candidates"} <= set(result.seconds)
    json.dumps(result.as_dict())


def test_what_was_measured_is_a_corpus(adapted):
    result, _, _, _ = adapted
    corpus = Corpus.open(result.corpus)
    assert corpus.meta["programs"] == 90
    found = {(p.task_id, p.key): p for p in corpus.iter_programs()}
    for pick in result.picks:
        program = found[pick.task_id, pick.key]
        assert program.valid == (pick.error is None)
        assert pick.latency is None or program.latency == pick.latency
    assert {t.computation for t in corpus.tasks.values()} == {f"{op}-{i:016x}" for i, op in enumerate(OPS)}


def test_a_second_run_measures_nothing_again(adapted, base: Base):
    first, _, work, _ = adapted
    lab = Lab()
    second = run(base, lab, work, rounds=3)
    assert lab.measured == []
    assert lab.opened == 0, "no worker is started"
    assert second.reused == 90
    assert [p.key for p in second.picks] == [p.key for p in first.picks]
    assert second.guard == first.guard


@pytest.mark.parametrize("sampler", ["rdu", "strata"])
@pytest.mark.parametrize(("smaller", "larger"), [(30, 60), ("30s", "60s"), (30, "auto"), (60, "100%")])
def test_a_larger_budget_pays_for_the_difference_only(base: Base, tmp_path: Path, sampler: str, smaller, larger):
    options = LITTLE | {"sampler": sampler, "rounds": 2}
    first, rest, again = Lab(), Lab(), Lab()
    small = run(base, first, tmp_path, **options | {"budget": smaller})
    large = run(base, rest, tmp_path, **options | {"budget": larger})
    assert large.reused == small.measured == len(first.measured)
    assert not set(first.measured) & set(rest.measured)
    assert large.measured == small.measured + len(rest.measured)
    parts = [{(p.task_id, p.key): p.part for p in one.picks} for one in (small, large)]
    assert parts[0].items() <= parts[1].items(), "what judged judges still, and what was learnt from is"
    repeated = run(base, again, tmp_path, **options | {"budget": larger})
    assert not again.measured
    assert repeated.guard == large.guard
    assert run(base, again, tmp_path, **options | {"budget": smaller}).guard == small.guard
    assert not again.measured, "nor of the smaller one"


def test_another_sampler_begins_anew(base: Base, tmp_path: Path):
    """Side by side in one folder, each picks what it would have picked alone."""
    run(base, Lab(), tmp_path, **LITTLE)
    beside, alone = (run(base, Lab(), folder, sampler="strata", **LITTLE) for folder in (tmp_path, tmp_path / "alone"))
    assert {(p.task_id, p.key, p.round) for p in beside.picks} == {(p.task_id, p.key, p.round) for p in alone.picks}
    assert beside.guard == alone.guard


def test_a_model_that_ranks_worse_is_not_stored(base: Base, tmp_path: Path, home: Path):
    """Labels to learn from that contradict the hold-out: the guard must catch it."""

    def by_the_base(candidate: Candidate) -> float:
        """Exactly as the base predicts on what is measured first, the hold-out; backwards after that."""
        score = float(base.checkpoint.score([from_trace_json(candidate.trace)])[0])
        sign = -1 if len(lab.measured) <= 18 else 1
        return float(np.exp(sign * score * 20) * 1e-3)

    lab = Lab(latency=by_the_base)
    result = run(base, lab, tmp_path, fine_tune=replace(QUICK, val_share=0, blind_epochs=20))
    assert result.guard.base > 0.95
    assert result.guard.decision == "kept"
    assert (result.name, result.version, result.path) == ("tcl-epyc", None, None)
    assert "did not rise" in result.guard.reason
    assert not (home / "checkpoints" / "tcl-epyc+local").exists()


def test_a_module_at_hand_is_a_workload(base: Base, tmp_path: Path):
    seen: list[TuningTask] = []

    def stop(task: TuningTask, *_recipe: object) -> list[Candidate]:
        seen.append(task)
        raise InterruptedRunError("the tasks are known")

    tools = replace(toolbox(base, Lab()), make_candidates=stop)
    with pytest.raises(InterruptedRunError):
        run(base, Lab(), tmp_path, tools, workload=torch.nn.Linear(8, 8), example_inputs=torch.zeros(4, 8))
    assert [(task.op, set(task.networks)) for task in seen] == [("matmul", {"Linear"})]
