"""Fine-tuning learns from a few labels without drifting, and refuses what teaches nothing."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from fine_tune_kit import make_data, same_state, small, state_of, weights_of
from tchub.zoo.adapt.errors import AdaptError, LabelError
from tchub.zoo.adapt.fine_tune import FineTuneConfig, fine_tune
from tchub.zoo.models import CostModel
from tchub.zoo.training import RankingDataset, evaluate_model

FAST = FineTuneConfig(learning_rate=2e-3, head_learning_rate=2e-3, anchor=0.0, update="all", epochs=25, patience=6)


@pytest.fixture
def model() -> CostModel:
    return small()


def test_a_few_labels_teach_unseen_programs(model: CostModel):
    result = fine_tune(model, make_data(), FAST)
    unseen = make_data(seed=9)
    assert evaluate_model(result.model, unseen)["pairwise"] > evaluate_model(model, unseen)["pairwise"] + 0.1
    assert result.validated
    assert 0 < result.epochs < len(result.val_curve)


def test_the_model_passed_in_is_unchanged_and_runs_repeat(model: CostModel):
    before = copy.deepcopy(model)
    random_state = torch.get_rng_state()
    config = FineTuneConfig(epochs=5)
    first = fine_tune(model, make_data(noise=0.3), config)
    second = fine_tune(model, make_data(noise=0.3), config)
    assert same_state(model, state_of(before))
    assert same_state(second.model, state_of(first.model))
    assert first.val_curve == second.val_curve
    assert torch.equal(random_state, torch.get_rng_state()), "the caller's random numbers are left alone"


def test_the_anchor_keeps_the_model_near_its_start(model: CostModel):
    def moved(anchor: float) -> float:
        config = FineTuneConfig(
            learning_rate=1e-3, head_learning_rate=1e-3, anchor=anchor, val_share=0, blind_epochs=10, update="all"
        )
        return float((weights_of(fine_tune(model, make_data(), config).model) - weights_of(model)).norm())

    assert moved(10.0) < 0.5 * moved(0.0)


def test_too_few_labels_to_validate_take_a_fixed_number_of_passes(model: CostModel):
    result = fine_tune(model, make_data(tasks=2, programs=4))
    assert not result.validated
    assert result.epochs == FineTuneConfig().blind_epochs
    assert result.val_curve == ()


# What teaches nothing is refused


@pytest.mark.parametrize("latency", [np.ones(8), np.arange(1.0, 9.0)])
def test_labels_without_an_order_are_refused(model: CostModel, latency: np.ndarray):
    """Constant labels, or one program a task."""
    group = np.zeros(8, np.int64) if latency[0] == latency[1] else np.arange(8)
    names = tuple("abcdefgh"[: group.max() + 1])
    data = RankingDataset(np.ones((8, 5, 6), np.float32), latency, group, names, np.ones(len(names)))
    with pytest.raises(LabelError, match="no ranking") as caught:
        fine_tune(model, data)
    assert caught.value.remedy


def test_nan_labels_are_refused(model: CostModel):
    data = make_data()
    data.latency[3] = np.nan  # the array is the caller's, and may change after it was checked
    with pytest.raises(LabelError):
        fine_tune(model, data)


def test_what_cannot_be_moved_or_read_is_refused(model: CostModel):
    with pytest.raises(AdaptError, match="9 columns") as caught:
        fine_tune(model, make_data(width=9))
    assert (caught.value.fields["expected"], caught.value.fields["actual"]) == (6, 9)
    with pytest.raises(AdaptError, match="nothing"):
        fine_tune(model.requires_grad_(False), make_data())
    with pytest.raises(AdaptError) as unknown:
        FineTuneConfig(update="everything")
    assert "low-rank" in str(unknown.value.remedy)
