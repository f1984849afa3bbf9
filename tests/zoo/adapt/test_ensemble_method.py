"""`committee`: a fine-tuned base and a network that knows the labels alone, whatever the base knows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tchub.zoo.adapt import committee_method, fresh, methods
from tchub.zoo.adapt.adapt_model import adapt_model, applying
from tchub.zoo.adapt.ensemble import EnsembleMethod, fresh_share, unit
from tchub.zoo.adapt.errors import LabelError, AdaptError
from tchub.zoo.adapt.fine_tune import fine_tune
from tchub.zoo.adapt.training_cache import model_digest
from tchub.zoo.models import CostModel, Ensemble, Progressive, create
from tchub.zoo.training import pairwise_accuracy
from test_adapt_methods import NET, lesson_of, make_data


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(fresh, "LEAST_STEPS", 60)


@pytest.fixture(scope="module")
def misled() -> CostModel:
    """A base that learnt many programs whose latencies say nothing of them."""
    torch.manual_seed(0)
    right = make_data(programs=40)
    shuffled = np.concatenate([np.random.default_rng(0).permutation(right.latency[m]) for m in right.members])
    return fresh.train_fresh(create("tilenet", **NET), replace(right, latency=shuffled))


def accuracy(model: CostModel, programs: int = 40) -> float:
    judged = make_data(programs=programs, seed=9)
    return pairwise_accuracy(model.score(judged.features), judged.latency, judged.group)


def test_a_network_that_knows_the_labels_alone_mends_a_base_that_misleads(misled: CostModel, monkeypatch) -> None:
    monkeypatch.setattr(fresh, "LEAST_STEPS", 200)
    assert accuracy(misled) < 0.6
    lesson = lesson_of(misled, make_data(programs=20))
    tuned = adapt_model("few-shot", lesson).model
    made = EnsembleMethod().learn(misled, lesson)
    assert accuracy(made.model) > accuracy(tuned) + 0.02
    assert made.facts["fresh_share"] == pytest.approx(1 / 3, abs=1e-4)


def test_the_first_member_is_what_few_shot_makes_and_the_base_stays_as_it_was(misled: CostModel) -> None:
    before = model_digest(misled)
    lesson = lesson_of(misled, make_data())
    made = EnsembleMethod().learn(misled, lesson).model
    assert isinstance(made, Ensemble)
    tuned = fine_tune(misled, lesson.data, replace(lesson.config, seed=lesson.seed)).model
    assert model_digest(made.each[0]) == model_digest(tuned)
    assert model_digest(misled) == before
    assert len(made.each) == 2


def test_the_more_labels_the_more_they_count() -> None:
    shares = [fresh_share(make_data(programs=n)) for n in (2, 4, 8, 16, 64)]
    assert shares == sorted(shares)
    assert shares[0] < 0.1
    assert shares[3] == shares[4] == pytest.approx(1 / 3)


def test_of_scores_that_have_no_units_none_is_louder_than_another() -> None:
    data, rng = make_data(), np.random.default_rng(0)
    said = -np.log(data.latency) + rng.normal(size=len(data))

    def saying(scores: np.ndarray) -> CostModel:
        model = create("tenset-mlp", width=160, hidden=8)
        model.score = lambda *_: scores
        return model

    quiet, loud = unit(saying(said), data), unit(saying(10 * said + 3), data)
    assert quiet == pytest.approx(10 * loud)
    assert 0 < quiet < 1, "half of its spread is noise"
    assert unit(saying(np.zeros(len(data))), data) == 0, "it has no say"


def test_a_second_run_trains_nothing_anew(misled: CostModel, tmp_path, monkeypatch) -> None:
    trained: list[int] = []
    real = committee_method.train_fresh

    def counted(like, data, seed):
        trained.append(seed)
        return real(like, data, seed)

    monkeypatch.setattr(committee_method, "train_fresh", counted)
    lesson = lesson_of(misled, make_data(), folder=tmp_path)
    first = EnsembleMethod().learn(misled, lesson).model
    again = EnsembleMethod().learn(misled, lesson).model
    assert trained == [lesson.seed]
    assert model_digest(first) == model_digest(again)


def test_what_few_shot_took_long_to_learn_is_not_learnt_again(misled: CostModel, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(methods, "WORTH_KEEPING", 0.0)
    tuned: list[int] = []
    real = methods.fine_tune

    def counted(model, data, config):
        tuned.append(len(data))
        return real(model, data, config)

    monkeypatch.setattr(methods, "fine_tune", counted)
    lesson = lesson_of(misled, make_data(), folder=tmp_path)
    methods.keeping(methods.FewShot())(misled, lesson)
    EnsembleMethod().learn(misled, lesson)
    assert tuned == [len(lesson.data)]


def test_what_is_no_plain_network_is_refused(misled: CostModel) -> None:
    for model, why in (
        (Progressive.around(misled), "knowledge base"),
        (Ensemble.around([misled, misled], (0.5, 0.5)), "ensemble"),
    ):
        with pytest.raises(AdaptError, match=why) as caught:
            applying("committee", model, 0)
        assert caught.value.remedy
    assert "committee" not in [m.name for m in applying("auto", Progressive.around(misled), 0)[0]]


def test_a_committee_is_adapted_again_as_any_network(misled: CostModel) -> None:
    base = Ensemble.around([misled, misled], (0.5, 0.5)).eval()
    found = adapt_model("auto", lesson_of(base, make_data()))
    assert (found.method, found.model.arch) == ("few-shot", "tilenet-ensemble")
    assert all(one.missing for one in found.tried if one.method != "few-shot")


def test_labels_without_an_order_are_refused(misled: CostModel) -> None:
    with pytest.raises(LabelError):
        EnsembleMethod().learn(misled, lesson_of(misled, replace(make_data(), latency=np.full(60, 1e-3))))
