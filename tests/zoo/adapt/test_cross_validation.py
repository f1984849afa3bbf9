"""Adapting again what was adapted here before: programs that a model knows by heart are no judges of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fine_tune_kit import make_data, small
from tchub.zoo.adapt.cross_validation import cross_validate, nested_gain
from tchub.zoo.adapt.method import TrainedModel, TrainingSet
from tchub.zoo.devices import get_device
from tchub.zoo.models import CostModel

DATA = make_data(tasks=6, programs=20)
# Half of each task.
UNSEEN = np.arange(len(DATA)) % 2 == 0


def remembering(indices: np.ndarray) -> CostModel:
    """Knows the latency of some programs, and of any other nothing."""
    known = {float(DATA.features[i, 0, 0]): -float(np.log(DATA.latency[i])) for i in indices}
    model = small()
    model.forward = lambda x: torch.tensor([known.get(float(one[0, 0]), 0.0) for one in x])  # pyright: ignore
    return model


def training_set(unseen: np.ndarray | None) -> TrainingSet:
    """The base has learnt before what is not `UNSEEN`."""
    base = remembering(np.flatnonzero(~UNSEEN))
    return TrainingSet(base, DATA, DATA.features, get_device("epyc"), incumbent=base, unseen=unseen)


def test_programs_that_a_model_has_learnt_before_are_learnt_again_and_judge_nothing():
    """A method that learns the rest as well is far better than a base that knows none of it."""
    parts: list[int] = []

    def learn_all(start: CostModel, part: TrainingSet) -> TrainedModel:
        parts.append(len(part.data))
        return TrainedModel(remembering(np.arange(len(DATA))), {})

    judged, misled = (
        cross_validate(learn_all, training_set(None).base, training_set(unseen), near=False) for unseen in (UNSEEN, None)
    )
    assert judged is not None
    assert misled is not None
    assert sum(parts[:3]) == sum(parts[3:]) == 2 * len(DATA), "all are learnt, whichever judge"
    assert judged.base == 0.5, "no better than a coin on what it has not learnt"
    assert nested_gain([judged]) == pytest.approx(0.5)
    assert misled.base > 0.5, "by memory"


def test_too_few_programs_that_are_new_to_the_models_tell_nothing():
    indices = np.arange(len(DATA))
    for unseen in (indices < 0, indices < 6):
        assert cross_validate(lambda start, _: TrainedModel(start, {}), small(), training_set(unseen), near=True) is None
