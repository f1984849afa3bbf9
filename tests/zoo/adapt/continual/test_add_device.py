"""A knowledge base learns device after device: in which order, what moves, and what is kept."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from continual_kit import FAST, WIDTH, accuracy, device_data, first_base, moved, weights
from tchub.zoo.adapt.continual import add_device, learning_order, start_base
from tchub.zoo.adapt.continual.phases import distill
from tchub.zoo.devices import get_device
from tchub.zoo.models import ProgressiveNetwork, create
from tchub.zoo.training.errors import TrainingError


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


@pytest.mark.parametrize("arch", ["tilenet", "tcl", "lstm", "mtl-tlp", "atformer-1l"])
def test_other_networks_learn_a_device_too(arch: str) -> None:
    torch.manual_seed(0)
    sizes = {"tcl": {"d_model": 16, "hidden": 16, "head": 8}, "atformer-1l": {"hidden": 16, "feedforward": 16}}
    model = create(arch, width=WIDTH, hardware=False, **sizes.get(arch, {"hidden": 16}))
    base = start_base(model, device_data(0, tasks=2), FAST, lateral=2)
    added = add_device(base, device_data(1, tasks=2), None, replace(FAST, learn_epochs=1, distill_epochs=1))
    assert moved(weights(base), added.kb) == {"kb", "column", "lateral", "fisher"}


def test_scores_and_gate_of_one_device_are_as_recorded(first: ProgressiveNetwork) -> None:
    """Golden numbers of seed 3."""
    whole = add_device(first, device_data(1), device_data(1, seed=1), FAST, 3)
    pairwise = [whole.validation[name]["pairwise"] for name in ("before", "base", "column")]
    assert pairwise == pytest.approx([0.504668271, 0.561019836, 0.893250312], abs=1e-6)
    assert whole.gate == pytest.approx(0.606926800, abs=1e-5)


def test_the_folder_of_another_run_is_refused(first: ProgressiveNetwork, tmp_path) -> None:
    config = replace(FAST, learn_epochs=1, distill_epochs=1)
    other = add_device(first, device_data(1), None, config, 0, tmp_path).kb
    for base, settings, seed in ((other, config, 0), (first, replace(config, beta=0.9), 0), (first, config, 1)):
        with pytest.raises(TrainingError):
            add_device(base, device_data(1), None, settings, seed, tmp_path)
    (tmp_path / "device.json").write_text("[")
    with pytest.raises(TrainingError):
        add_device(first, device_data(1), None, config, 0, tmp_path)


SOURCES = {name: get_device(name) for name in ("v100", "t4", "mi50", "epyc")}


@pytest.mark.parametrize(
    ("target", "least_alike", "most_alike"),
    [
        ("v100", "mi50", "a100"),  # another vendor's, nearer in numbers
        ("epyc-7452", "xeon", "epyc-turin"),  # the same family
        ("graviton2", "xeon", "cortex-a72"),  # the same instruction set
        ("epyc-7452", "graviton2", "xeon"),
    ],
)
def test_family_instruction_set_and_vendor_decide_before_the_numbers(target: str, least_alike: str, most_alike: str):
    sources = {name: get_device(name) for name in (most_alike, least_alike)}
    assert learning_order(get_device(target), sources) == [least_alike, most_alike]


def test_within_a_rank_the_numbers_decide_and_another_kind_of_device_comes_first():
    v100 = get_device("v100")
    unknown = replace(v100, name="unknown", spec=v100.spec.with_values(dict.fromkeys(v100.spec.names()), "unknown:"))
    sources = {"a100": get_device("a100"), "epyc": SOURCES["epyc"], "k80": get_device("k80"), "unknown": unknown}
    assert learning_order(get_device("t4"), sources) == ["epyc", "unknown", "a100", "k80"]
