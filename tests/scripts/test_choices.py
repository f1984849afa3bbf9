"""The benchmark of settings: each value is another one than the product's, and gains are over the same cases."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tchub.zoo.training import RankingDataset

from scripts.benchmarks import choices
from scripts.benchmarks.transfer import case


def every_choice() -> list[Any]:
    return [choice for part in choices.PARTS for choice in part.choices()]


def test_every_part_begins_with_what_the_product_does_and_changes_one_setting_at_a_time() -> None:
    for part in choices.PARTS:
        first, *others = part.choices()
        assert not first.setting
        assert others
        assert all(choice.default == part.defaults[choice.setting] for choice in others)
        assert all(choice.value != choice.default for choice in others)


def test_no_two_answers_share_a_file() -> None:
    places = [choice.path("k80", 0, labels) for choice in every_choice() for labels in choice.part.labels]
    assert len(set(places)) == len(places)


def scores(pairwise: float, top1: float = 0.5) -> dict[str, float]:
    return {"pairwise": pairwise, "mean_top1": top1}


def table() -> list[dict[str, Any]]:
    """Fine-tuning with 4 labels: two cases as it is, and a smaller rate that wins 0.01 and 0.03 of them."""
    part = next(part for part in choices.PARTS if part.title == "fine-tuning")
    default, slower, *_ = part.choices()
    base = {("k80", 0, 4): scores(0.8), ("mi50", 0, 4): scores(0.7), ("k80", 0, 8): scores(0.9)}
    found = {("k80", 0, 4): scores(0.81, 0.4), ("mi50", 0, 4): scores(0.73, 0.4), ("k80", 1, 4): scores(0.1)}
    return [choices.row(choice, own, base) for choice, own in ((default, base), (slower, found))]


def test_a_gain_is_the_mean_over_the_cases_that_both_have_with_its_standard_error() -> None:
    default, slower = table()
    assert default["scores"]["4"]["pairwise"] == {"mean": pytest.approx(0.75)}
    told = slower["scores"]["4"]
    assert told["cases"] == 2
    assert told["pairwise"] == {"mean": pytest.approx(0.77), "gain": pytest.approx(0.02), "error": pytest.approx(0.01)}
    assert told["mean_top1"]["gain"] == pytest.approx(-0.1)
    assert "8" not in slower["scores"], "no case of it was asked"


def test_the_summary_counts_values_and_names_the_largest_gain() -> None:
    found = choices.summary(table())
    assert found == {"values_tried": 1, "values_better": 1, "largest_gain": pytest.approx(0.02)}


@pytest.mark.parametrize(("setting", "value"), [("epochs", 25), ("loss", "log_ranknet"), ("device_dropout", 0.0)])
def test_a_changed_setting_of_pretraining_is_learnt_with(
    setting: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    learnt: dict[str, Any] = {}
    monkeypatch.setattr(case, "train", lambda model, data, val, recipe, seed: learnt.update(recipe=recipe))
    features = np.random.default_rng(0).random((8, 1, 160), dtype=np.float32)
    data = RankingDataset(features, np.arange(1.0, 9.0), np.zeros(8, np.int64), ("task",), np.ones(1))
    scene = SimpleNamespace(schema=SimpleNamespace(width=160, hardware=False))
    made = case.train_new(scene, data, 0, "tilenet", {setting: value})
    assert getattr(made.model.config if setting == "device_dropout" else learnt["recipe"], setting) == value
