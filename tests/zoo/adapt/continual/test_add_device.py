"""A knowledge base learns device after device: what moves, what is kept, and what may be stopped."""

from __future__ import annotations

from dataclasses import replace

import pytest
from continual_kit import FAST, accuracy, device_data, first_base, moved, weights
from tchub.zoo.adapt.continual import add_device
from tchub.zoo.adapt.continual.device import DeviceResult
from tchub.zoo.adapt.continual.phases import distill
from tchub.zoo.models import ProgressiveNetwork


@pytest.fixture(scope="module")
def first() -> ProgressiveNetwork:
    """A base that knows device 0."""
    return first_base()


def test_teaching_the_base_leaves_the_column_bit_for_bit(first: ProgressiveNetwork) -> None:
    model = ProgressiveNetwork.around(first.kb)
    before = weights(model)
    distill(model, device_data(1), None, FAST)
    assert moved(before, model) == {"kb"}


def test_a_device_is_added_and_the_first_is_kept(first: ProgressiveNetwork) -> None:
    was = accuracy(first, 0), accuracy(first, 1)
    before = weights(first)
    added = add_device(first, device_data(1), device_data(1, seed=1), replace(FAST, distill_epochs=12))
    assert moved(before, first) == set()
    assert added.validation["column"]["pairwise"] > was[1] + 0.2
    assert added.validation["before"]["pairwise"] < added.validation["base"]["pairwise"] - 0.1
    assert accuracy(added.kb, 1) > was[1] + 0.1
    assert added.adapted.config.as_dict()["column"] is True
    assert added.kb.config.as_dict()["column"] is False
    assert 0 < added.gate < 1


def test_a_base_that_ranks_validation_tasks_worse_than_before_is_told_from_chance(first: ProgressiveNetwork) -> None:
    """Tasks of another device stand for validation tasks that the training programs say nothing right of."""
    freely = replace(FAST, distill_epochs=12, beta=1.0, strength=0.0)
    results = {column: add_device(first, device_data(1), device_data(column, seed=1), freely) for column in (0, 1)}
    worse, better = (results[column].change for column in (0, 1))
    assert worse is not None
    assert better is not None
    assert (worse.fell, better.fell) == (True, False)
    assert worse.interval[0] < worse.after - worse.before < worse.interval[1] < 0 < better.interval[0]
    assert worse.before == pytest.approx(results[0].validation["before"]["pairwise"])
    assert add_device(first, device_data(1), None, replace(FAST, learn_epochs=1, distill_epochs=1)).change is None


def test_consolidation_forgets_less(first: ProgressiveNetwork) -> None:
    """On a toy pair of devices that want other columns and look alike (the last column is of no use)."""
    config = replace(FAST, distill_epochs=12, beta=1.0)
    data = device_data(1)
    freely, held = (add_device(first, data, None, replace(config, strength=s)).kb for s in (0.0, 10_000.0))
    assert accuracy(held, 0) > accuracy(freely, 0) + 0.05


class Stop(Exception):
    """A kill."""


@pytest.fixture(scope="module")
def whole(first: ProgressiveNetwork) -> DeviceResult:
    """The run that was not killed."""
    return add_device(first, device_data(1), device_data(1, seed=1), FAST, 3)


@pytest.mark.parametrize(("phase", "epoch"), [("learn", 0), ("learn", 3), ("distill", 0), ("distill", 3)])
def test_a_run_that_was_killed_goes_on_to_the_same_weights(first, whole, tmp_path, phase: str, epoch: int) -> None:
    def stop(in_phase: str, entry: dict[str, float]) -> None:
        if (in_phase, entry["epoch"]) == (phase, epoch):
            raise Stop

    data, val = device_data(1), device_data(1, seed=1)
    with pytest.raises(Stop):
        add_device(first, data, val, FAST, 3, tmp_path, stop)
    resumed = add_device(first, data, val, FAST, 3, tmp_path)
    assert moved(weights(whole.kb), resumed.kb) == set()
    assert moved(weights(whole.adapted), resumed.adapted) == set()
    assert resumed.learning.resumed_from + resumed.distilling.resumed_from > 0
