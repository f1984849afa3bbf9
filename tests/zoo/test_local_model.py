"""The local model: the pretrained ranker stays, and something small learns what it gets wrong on this device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fine_tune_kit import NETWORKS, make_data, same_state, small, state_of
from tchub.zoo.adapt.errors import LabelError, LocalModelError, SourceMismatchError
from tchub.zoo.adapt.local_model import LocalModelConfig, fit_local
from tchub.zoo.training import RankingDataset, pairwise_accuracy

RIDGE = LocalModelConfig(kind="ridge")
both = pytest.mark.parametrize("config", [LocalModelConfig(), RIDGE], ids=lambda config: config.kind)


def accuracy(scores: np.ndarray, data: RankingDataset) -> float:
    return pairwise_accuracy(scores, data.latency, data.group)


@both
def test_it_corrects_the_model_on_programs_that_were_not_measured(config: LocalModelConfig):
    model, unseen = small(), make_data(seed=9)
    local = fit_local(model, make_data(programs=40), config)
    assert accuracy(local.score(unseen.features), unseen) > accuracy(model.score(unseen.features), unseen) + 0.01
    assert (local.programs, local.tasks) == (240, 6)


@both
def test_the_unit_and_the_level_of_the_clock_do_not_matter(config: LocalModelConfig):
    """Seconds or cycles, and a task that is a thousand times slower: the gap is within tasks."""
    model, data = small(), make_data()
    slower = replace(data, latency=data.latency * np.where(data.group == 2, 1e3, 7.0))
    unseen = make_data(seed=9).features
    one, other = fit_local(model, data, config).score(unseen), fit_local(model, slower, config).score(unseen)
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@both
def test_fitting_repeats_and_leaves_the_model_alone(config: LocalModelConfig):
    model, data = small(), make_data()
    before = state_of(model)
    first, second = (fit_local(model, data, config).score(data.features) for _ in range(2))
    assert np.array_equal(first, second)
    assert same_state(model, before)


@both
@pytest.mark.parametrize("arch", NETWORKS)
def test_every_network_has_a_local_model(arch: str, config: LocalModelConfig):
    data = make_data(tasks=3, programs=8)
    scores = fit_local(small(arch), data, config).score(data.features)
    assert (scores.shape, scores.dtype) == ((24,), np.float64)
    assert np.isfinite(scores).all()


def test_a_score_that_is_the_truth_in_another_unit_has_no_gap():
    """The slope gives the unit, and the level of the task is taken off: nothing is left to correct."""

    class Oracle:
        arch, config = "tcl", small().config

        def score(self, features: np.ndarray) -> np.ndarray:
            return -3.0 * (features[:, :, 0].sum(1) - 2 * features[:, :, 3].sum(1)) + 5.0

    local = fit_local(Oracle(), make_data())  # pyright: ignore[reportArgumentType]
    assert local.slope == pytest.approx(1 / 6, rel=1e-4)
    unseen = make_data(seed=9)
    assert accuracy(local.score(unseen.features), unseen) > 0.999


def test_a_model_that_is_wrong_throughout_is_not_turned_around():
    model, data = small(), make_data()
    upside_down = replace(data, latency=np.exp(model.score(data.features)))
    assert fit_local(model, upside_down).slope == 0.0


def test_of_a_ridge_the_labels_choose_the_strength():
    """Noise in place of labels is shrunk the most, a rule of the embeddings the least."""
    model, clear = small(), make_data(tasks=3, programs=60)
    noise = replace(clear, latency=np.exp(np.random.default_rng(0).normal(size=len(clear))))
    strengths = [getattr(fit_local(model, data, RIDGE).gap, "strength", None) for data in (clear, noise)]
    assert strengths[0] < strengths[1] == max(RIDGE.strengths)


@both
def test_labels_without_an_order_and_other_features_are_refused(config: LocalModelConfig):
    data = make_data()
    with pytest.raises(LabelError):
        fit_local(small(), replace(data, latency=np.ones(len(data))), config)
    with pytest.raises(SourceMismatchError) as caught:
        fit_local(small(), make_data(width=9), config)
    assert caught.value.remedy


def test_an_unknown_kind_is_refused():
    with pytest.raises(LocalModelError, match="forest") as caught:
        LocalModelConfig(kind="forest")
    assert "trees, ridge" in str(caught.value.remedy)
