"""What each method learns: an ensemble mends a base that misleads, and a finished training is read again."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from method_kit import NET, line_data, small, training_set
from tchub.zoo.adapt import method
from tchub.zoo.adapt.adapt_model import adapt_model
from tchub.zoo.adapt.fine_tune import fine_tune
from tchub.zoo.adapt.method import EnsembleMethod, TrainedModel, cached_model, model_digest, score_unit
from tchub.zoo.models import CostModel, Ensemble, create
from tchub.zoo.training import pairwise_accuracy


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(method, "LEAST_STEPS", 60)


@pytest.fixture(scope="module")
def misled() -> CostModel:
    """A base that learnt many programs whose latencies have nothing to do with them."""
    torch.manual_seed(0)
    right = line_data(programs=40)
    shuffled = np.concatenate([np.random.default_rng(0).permutation(right.latency[m]) for m in right.members])
    return method.train_fresh(create("tilenet", **NET), replace(right, latency=shuffled))


def accuracy(model: CostModel) -> float:
    judged = line_data(programs=40, seed=9)
    return pairwise_accuracy(model.score(judged.features), judged.latency, judged.group)


def test_a_network_that_knows_the_labels_alone_mends_a_base_that_misleads(misled: CostModel, monkeypatch) -> None:
    monkeypatch.setattr(method, "LEAST_STEPS", 200)
    assert accuracy(misled) < 0.6
    given, before = training_set(misled, line_data(programs=20)), model_digest(misled)
    result = EnsembleMethod().learn(misled, given)
    assert isinstance(result.model, Ensemble)
    tuned = fine_tune(misled, given.data, replace(given.config, seed=given.seed)).model
    assert model_digest(result.model.each[0]) == model_digest(tuned), "the first member is what few-shot makes"
    assert accuracy(result.model) > accuracy(tuned) + 0.02
    assert result.facts["fresh_share"] == pytest.approx(1 / 3, abs=1e-4)
    assert (len(result.model.each), model_digest(misled)) == (2, before)


def test_of_scores_that_have_no_units_none_is_louder_than_another() -> None:
    data, rng = line_data(), np.random.default_rng(0)
    scores = -np.log(data.latency) + rng.normal(size=len(data))

    def scoring(values: np.ndarray) -> CostModel:
        model = create("tenset-mlp", width=160, hidden=8)
        model.score = lambda *_: values
        return model

    quiet, loud = score_unit(scoring(scores), data), score_unit(scoring(10 * scores + 3), data)
    assert quiet == pytest.approx(10 * loud)
    assert 0 < quiet < 1, "half of its spread is noise"
    assert score_unit(scoring(np.zeros(len(data))), data) == 0, "it has no influence"


def test_a_second_run_trains_nothing_anew(misled: CostModel, tmp_path, monkeypatch) -> None:
    """Nor does the ensemble fine-tune again what few-shot took long to learn."""
    trained: list[str] = []

    def counted(name: str, real):
        return lambda *args: (trained.append(name), real(*args))[1]

    monkeypatch.setattr(method, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(method, "fine_tune", counted("tuned", method.fine_tune))
    monkeypatch.setattr(method, "train_fresh", counted("fresh", method.train_fresh))
    given = training_set(misled, line_data(), folder=tmp_path)
    method.FewShot().learn(misled, given)
    first, again = (EnsembleMethod().learn(misled, given).model for _ in range(2))
    assert trained == ["tuned", "fresh"]
    assert model_digest(first) == model_digest(again)


def test_an_ensemble_is_adapted_again_as_any_network(misled: CostModel) -> None:
    base = Ensemble.around([misled, misled], (0.5, 0.5)).eval()
    result = adapt_model("auto", training_set(base, line_data()))
    assert (result.method, result.model.arch) == ("few-shot", "tilenet-ensemble")
    assert all(one.missing for one in result.tried if one.method != "few-shot")


def test_a_model_is_trained_once_and_anew_when_its_file_is_torn(tmp_path: Path):
    states: list[Path | None] = []
    model = small()

    def train(state: Path | None):
        states.append(state)
        if state is not None:
            state.mkdir(parents=True, exist_ok=True)
        return TrainedModel(model, {"epochs": 3})

    first, second = (cached_model(tmp_path, ("a",), train) for _ in range(2))
    assert len(states) == 1
    assert model_digest(first.model) == model_digest(second.model)
    assert second.facts == {"epochs": 3}
    assert states[0] is not None
    assert not states[0].exists(), "the epochs of a finished training are removed"
    cached_model(tmp_path, ("b",), train)
    assert states[1] != states[0], "other inputs are another training"
    for file in tmp_path.iterdir():
        file.write_bytes(file.read_bytes()[:-9])
    cached_model(tmp_path, ("a",), train)
    assert states[2] == states[0]
    for _ in range(2):
        cached_model(tmp_path, ("quick",), train, least_seconds=60)
    assert len(states) == 5, "what takes no time is not worth the room"
    assert cached_model(None, ("a",), train).model is model
    assert states[-1] is None
