"""Picks and accuracies of small adaptations with fixed seeds, as recorded in `golden_adaptation.json`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from method_kit import line_data, source, tiny_tilenet, training_set
from tchub.zoo.adapt import Pool, create_sampler
from tchub.zoo.adapt.adapt_model import adapt_model
from tchub.zoo.adapt.continual import ContinualConfig, DistillConfig
from tchub.zoo.adapt.sampling import SAMPLERS, PoolPredictions

GOLDEN = json.loads((Path(__file__).parent / "golden_adaptation.json").read_text())
TASK = np.repeat(np.arange(8), [60, 40, 50, 10, 80, 30, 60, 20])
POOL = Pool(TASK, ("conv", "conv", "mm", "pool", "mm", "norm", "conv", "pool"))


def close(value: Any, expected: Any) -> bool:
    """Equal up to rounding, through lists."""
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
        known = {"task": TASK, "features": embeddings[:, None, :]}
        predictions = PoolPredictions(scores, labeled, seconds, lambda: embeddings, **known) if number else None
        labeled += create_sampler(name).select(POOL, labeled, 24, predictions, chance, round=number).indices.tolist()
    assert labeled == GOLDEN["samplers"][name]


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
