"""`continual` from a plain checkpoint: what it knew is kept, and a source that does harm is left out."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tchub.zoo.adapt.adapt_model import adapt_model
from tchub.zoo.adapt.continual import ContinualConfig, DistillConfig
from tchub.zoo.adapt.continual import device as continual_method
from tchub.zoo.adapt.continual.device import Continual, measure_change
from tchub.zoo.adapt.fine_tune import FineTuneConfig
from tchub.zoo.adapt.method import SourceData, TrainingSet, model_digest
from tchub.zoo.devices import get_device
from tchub.zoo.models import CostModel, ProgressiveNetwork, create
from tchub.zoo.training import RankingDataset, evaluate_model, train

WIDTH = 6
SMALL = replace(ContinualConfig().recipe, groups_per_batch=3, programs_per_group=12, average=0.0)
FAST = ContinualConfig(
    learn_epochs=4, distill_epochs=8, recipe=SMALL, learn_rate=0.01,
    distill_rate=0.01, distill_period=20,
)  # fmt: skip


def programs(device: int, sign: float = 1.0, seed: int = 0) -> RankingDataset:
    """A toy device, whose number is coded in the last row; a program's speed is its first column times a sign."""
    rng = np.random.default_rng([seed, device])
    group = np.repeat(np.arange(3), 24)
    x = rng.standard_normal((len(group), 2, WIDTH)).astype(np.float32)
    x[:, 0, -1], x[:, 1] = 0, 0
    x[:, 1, device] = 1
    latency = np.exp(-sign * x[:, 0, 0] - 5.0)
    return RankingDataset(x, latency, group, tuple(f"t{i}" for i in range(3)), np.ones(3))


@pytest.fixture(scope="module")
def checkpoint() -> CostModel:
    """A plain network that knows device 0."""
    torch.manual_seed(0)
    model = create("tcl", width=WIDTH, hardware=True, hidden=16, d_model=16, head=8)
    train(model, programs(0), None, replace(FAST, learn_epochs=20).learning())
    return model.eval()


def device_2(model: CostModel, target: RankingDataset, *sources: SourceData, **more: Any) -> TrainingSet:
    """What is known of device 2, which is like nothing in particular."""
    return TrainingSet(model, target, target.features, get_device("epyc"), sources, **more)


def start(training_set: TrainingSet) -> tuple[ProgressiveNetwork, dict[str, Any]]:
    result = Continual().start(training_set)
    return result.model, result.facts


OPPOSITE = SourceData("opposite", get_device("xeon"), programs(1, sign=-1.0))
ALIKE = SourceData("alike", get_device("xeon"), programs(1, seed=3))


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sources are learnt by the settings of these tests."""
    monkeypatch.setattr(DistillConfig, "phases", lambda *args: FAST)


@pytest.mark.usefixtures("fast")
def test_the_order_on_its_own_device_is_kept_better_where_that_device_is_known(checkpoint: CostModel):
    """The source says the opposite of what the checkpoint has learnt, and the target agrees with the source."""
    own, target = programs(0, seed=9), programs(2, sign=-1.0)
    kept, lost = (
        start(device_2(checkpoint, target, OPPOSITE, known_devices=known))[0].kb for known in (own.features[:1], None)
    )
    was, now, without = (evaluate_model(model, own)["pairwise"] for model in (checkpoint, kept, lost))
    assert was > 0.9
    assert now > without + 0.1
    assert now > was - 0.2


@pytest.mark.usefixtures("fast")
def test_a_source_after_which_the_labels_are_ranked_worse_is_left_out(checkpoint: CostModel, tmp_path: Path):
    model, facts = start(device_2(checkpoint, programs(2), OPPOSITE, ALIKE, folder=tmp_path))
    assert facts["sources"] == ["alike"]
    harm = facts["left_out"]["opposite"]
    assert harm["before"] > 0.9
    assert harm["after"] < harm["before"] - 0.2
    assert harm["interval"][1] < 0
    without, _ = start(device_2(checkpoint, programs(2), ALIKE))
    assert model_digest(model) == model_digest(without), "nothing of it is left in the base"


@pytest.mark.usefixtures("fast")
def test_with_no_source_left_learning_begins_as_without_any(
    checkpoint: CostModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    given = device_2(checkpoint, programs(2), OPPOSITE, folder=tmp_path, config=FineTuneConfig(epochs=2, refit=False))
    model, facts = start(given)
    assert (facts["sources"], list(facts["left_out"])) == ([], ["opposite"])
    assert model_digest(model) == model_digest(start(device_2(checkpoint, programs(2)))[0])
    monkeypatch.setattr(continual_method, "add_device", None)  # the source is not learnt again
    assert set(adapt_model("continual", given).facts) >= {"sources", "left_out", "epochs", "validated"}
    other_labels = device_2(checkpoint, programs(2, sign=-1.0).take(np.arange(0, 72, 4)), OPPOSITE, folder=tmp_path)
    assert start(other_labels)[1] == {"sources": ["opposite"], "left_out": {}}, "other labels keep it"


@pytest.mark.usefixtures("fast")
def test_labels_that_judge_nothing_leave_out_no_source(checkpoint: CostModel):
    target = programs(2)
    memorised = device_2(checkpoint, target, OPPOSITE, unseen=np.zeros(len(target), dtype=bool))
    assert start(memorised)[1] == {"sources": ["opposite"], "left_out": {}}
    assert measure_change(checkpoint, checkpoint, replace(target, latency=np.full(72, 1e-3))) is None
    unmoved = measure_change(checkpoint, checkpoint, target)
    assert unmoved is not None
    assert (unmoved.fell, unmoved.interval) == (False, (0.0, 0.0))


def test_what_other_settings_have_made_is_not_taken_up(
    checkpoint: CostModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    digests = []
    for settings, folder in ((FAST, tmp_path), (longer := replace(FAST, learn_epochs=5), tmp_path), (longer, None)):
        monkeypatch.setattr(DistillConfig, "phases", lambda *args, config=settings: config)
        digests.append(model_digest(start(device_2(checkpoint, programs(2), ALIKE, folder=folder))[0]))
    assert digests[0] != digests[1]
    assert digests[1] == digests[2]
