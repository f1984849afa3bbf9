"""Picks, accuracies and decisions of small adaptations with fixed seeds, as recorded in `golden_adaptation.json`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from method_kit import line_data, make_data, small, source, tiny_tilenet, training_set
from tchub.zoo.adapt import Pool, choose_holdout, create_sampler
from tchub.zoo.adapt.adapt_model import adapt_model
from tchub.zoo.adapt.budget import LearningPoint, decide
from tchub.zoo.adapt.continual import ContinualConfig, DistillConfig
from tchub.zoo.adapt.fine_tune import FineTuneConfig, fine_tune
from tchub.zoo.adapt.guard import compare
from tchub.zoo.adapt.sampling import SAMPLERS, PoolPredictions
from tchub.zoo.adapt.sampling.pool import op_budgets, task_budgets
from tchub.zoo.plain_json import plain

GOLDEN = json.loads((Path(__file__).parent / "golden_adaptation.json").read_text())
TASK = np.repeat(np.arange(8), [60, 40, 50, 10, 80, 30, 60, 20])
POOL = Pool(TASK, ("conv", "conv", "mm", "pool", "mm", "norm", "conv", "pool"))


def close(value: Any, expected: Any) -> bool:
    """Equal up to rounding, through lists and dictionaries."""
    if isinstance(expected, dict):
        return value.keys() == expected.keys() and all(close(value[key], expected[key]) for key in expected)
    if isinstance(expected, list):
        return len(value) == len(expected) and all(map(close, value, expected))
    return value == (pytest.approx(expected, rel=1e-6, abs=1e-9) if isinstance(expected, float) else expected)


@pytest.mark.parametrize("name", SAMPLERS)
def test_four_rounds_of_a_sampler_pick_the_same_programs(name: str):
    rng = np.random.default_rng(0)
    embeddings = rng.normal(size=(len(TASK), 6)).astype(np.float32)
    scores = embeddings @ rng.normal(size=6)
    latency = np.exp(-scores + 0.1 * rng.normal(size=len(TASK)))
    chance, labeled = np.random.default_rng(5), []
    for number in range(4):
        seconds = np.where(np.arange(len(labeled)) % 9 == 4, np.nan, latency[labeled])
        predictions = PoolPredictions(
            scores, labeled, seconds, lambda: embeddings, task=TASK, features=embeddings[:, None, :]
        )
        given = predictions if number else None
        labeled += create_sampler(name).select(POOL, labeled, 24, given, chance, round=number).indices.tolist()
    assert labeled == GOLDEN["samplers"][name]


def test_hold_out_and_budgets():
    assert choose_holdout(POOL, 22, np.random.default_rng(3)).tolist() == GOLDEN["holdout"]
    tasks = task_budgets(POOL, list(range(30)), 41, np.random.default_rng(1), 4).tolist()
    assert [op_budgets(POOL, list(range(30)), 41), tasks] == GOLDEN["budgets"]


def test_the_validation_curve_of_a_fine_tuning():
    result = fine_tune(small(), make_data(noise=0.3), FineTuneConfig(epochs=5))
    assert close([list(result.val_curve), result.epochs], GOLDEN["fine_tune"])


@pytest.mark.parametrize("name", GOLDEN["methods"])
def test_strength_gain_and_accuracy_of_a_method(name: str, monkeypatch: pytest.MonkeyPatch):
    method, sources = name.split()
    monkeypatch.setattr("tchub.zoo.adapt.method.LEAST_STEPS", 20)
    short = ContinualConfig(learn_epochs=1, distill_epochs=1, fisher_groups=4)
    monkeypatch.setattr(DistillConfig, "phases", lambda *args: short)
    given = training_set(
        tiny_tilenet(),
        line_data(noise=0.3),
        sources=(source("a", "xeon", 1), source("b", "graviton", 2)) if sources == "2" else (),
        unseen=np.arange(60) % 7 != 0,
    )
    result = adapt_model(method, given)
    tried = [[one.method, one.accuracy, one.base, one.strength] for one in result.tried]
    assert close([result.strength, result.learnt_gain, tried], GOLDEN["methods"][name])


def test_decisions_of_the_guard_and_of_the_automatic_budget():
    points = [LearningPoint(n, float(n), 0.05 + 2 * n**-0.5, 0.7) for n in (16, 32, 48)]
    assert close(asdict(decide(points, 16, 30.0, 60.0, 3)), GOLDEN["stop"])
    rng = np.random.default_rng(0)
    latency, group = rng.uniform(1, 10, 48), np.repeat(np.arange(8), 6)
    base, adapted = rng.normal(size=48), -latency + rng.normal(size=48)
    verdict = plain(compare(base, adapted, latency, group, learnt_gain=0.1))
    assert close(verdict, GOLDEN["guard"])
