"""`--method multi-task`, and a start that is the average of several checkpoints."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from adapt_kit import Lab, corpus_at, run
from tchub.hub.adaptation.sources import Sources
from tchub.hub.adaptation.start import choose_start
from tchub.hub.adaptation.tools import Base
from tchub.hub.registry import Registry
from tchub.zoo.adapt import multi_task_method
from tchub.zoo.corpus import Corpus
from tchub.zoo.models import Checkpoint
from tchub.zoo.training import RankingDataset, TrainConfig
from tchub.zoo.training.inputs import StatementStore
from tchub.zoo.training.read import read_programs


def test_multi_task_learns_beside_corpora_and_stores_a_plain_checkpoint_that_names_them(
    base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    quick = replace(TrainConfig.find("tcl"), epochs=3, learning_rate=5e-3, groups_per_batch=4, warmup_epochs=0)
    real = multi_task_method.multi_task
    monkeypatch.setattr(multi_task_method, "multi_task", lambda *a, **k: real(*a[:3], quick, **k))
    corpora = [corpus_at(tmp_path / name, name, name) for name in ("xeon", "graviton")]
    result = run(
        base, Lab(), tmp_path / "work", budget=40, programs_per_task=24, sampler="rdu",
        method="multi-task", sources=[str(path) for path in corpora],
    )  # fmt: skip
    assert result.learning["method"] == "multi-task"
    learnt = sum(pick.part == "learn" and pick.error is None for pick in result.picks)
    assert result.learning["training"]["programs"] == [learnt, 30, 30], "the target's, then each corpus's"
    assert result.adapted, "the base is untrained"
    stored = Checkpoint.load(result.path)
    assert (stored.config.arch, stored.config.model) == ("tcl", base.checkpoint.config.model), "its own head alone"
    assert stored.config.lineage["method"] == "multi-task"
    assert stored.config.lineage["source_licences"] == {"xeon": "CC0-1.0", "graviton": "CC0-1.0"}
    entry = Registry.default().resolve(result.name).entry
    assert entry.lineage["sources"] == ["xeon", "graviton"]
    assert "`xeon`, `graviton`" in (result.path / "README.md").read_text()


@pytest.fixture(scope="module")
def measured(adapted) -> tuple[Base, RankingDataset]:
    """A checkpoint that ranks this machine's programs, and what was measured here."""
    result, _, _, entry = adapted
    checkpoint, corpus = Checkpoint.load(result.path), Corpus.open(result.corpus)
    from tchub.zoo.features import get_schema

    data, _ = read_programs(corpus, sorted(corpus.tasks), get_schema("tcl-cpu"), StatementStore(result.path / "none"))
    assert data is not None
    return Base(checkpoint, entry), data


def moved(base: Base, name: str, way: float, part: str = "") -> Base:
    """The checkpoint with every weight of a part moved in one fixed random direction."""
    model, rng = copy.deepcopy(base.checkpoint.model), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for layer, weight in model.named_parameters():
            if layer.startswith(part):
                weight.add_(way * weight.std(correction=0) * torch.randn(weight.shape, generator=rng))
    return Base(replace(base.checkpoint, model=model), replace(base.entry, name=name))


def test_an_average_that_ranks_better_than_each_source_is_the_start(measured: tuple[Base, RankingDataset]):
    """What is wrong with one is right in the other: their encoders lie on two sides of a good one."""
    good, data = measured
    one, other = moved(good, "tcl-one", 2.0, "encoder"), moved(good, "tcl-other", -2.0, "encoder")
    start = choose_start(Sources((one, other), named=True), data, seed=0)
    assert start.name == "tcl-one@1.0.0 + tcl-other@1.0.0"
    assert start.base is one, "the one that was named is still the one to beat"
    assert all(start.model is not source.checkpoint.model for source in (one, other))


@pytest.mark.parametrize("programs", [0, 1, 4])
@pytest.mark.parametrize(("named", "why"), [(True, "was named"), (False, "is the first")])
def test_labels_too_few_to_compare_by_keep_the_first_source(
    measured: tuple[Base, RankingDataset], programs: int, named: bool, why: str
):
    """None, when all of the first batch failed; one, and four of a task, of which chance makes the better source."""
    good, data = measured
    far = moved(good, "tcl-far", 3.0)
    start = choose_start(Sources((far, good), named=named), data.take(data.members[0][:programs]), seed=0)
    assert start.model is far.checkpoint.model
    assert start.base is far
    assert (start.name, start.compared) == ("tcl-far@1.0.0", ())
    assert f"tcl-far@1.0.0, which {why}: too few labels that no source has learnt" in start.reason
    assert "nan" not in start.reason


def test_an_average_that_ranks_worse_than_a_source_is_not_the_start(measured: tuple[Base, RankingDataset]):
    good, data = measured
    far = moved(good, "tcl-far", 3.0)
    start = choose_start(Sources((far, good), named=True), data, seed=0)
    assert start.name == good.entry.id
    assert start.model is good.checkpoint.model
    assert start.base is far
    assert f"tcl-far@1.0.0 + {good.entry.id}" in start.reason, "it was looked at"
