"""What an update may move: every layer by its depth, the head alone, or factors of low rank; on every network."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from fine_tune_kit import NETWORKS, make_data, same_state, small, state_of
from tchub.zoo.adapt import methods
from tchub.zoo.adapt.choose_method import adapt_model
from tchub.zoo.adapt.fine_tune import FineTuneConfig, FineTuneResult, fine_tune
from tchub.zoo.adapt.methods import Lesson
from tchub.zoo.adapt.updates import Update, in_head, layer_depths
from tchub.zoo.devices import get_device
from tchub.zoo.features import get_schema
from tchub.zoo.models import Checkpoint, CheckpointConfig, CostModel, Progressive
from torch import nn

every_network = pytest.mark.parametrize("arch", NETWORKS)
DATA = make_data(tasks=3, programs=8)
ONE_PASS = FineTuneConfig(val_share=0, blind_epochs=2, learning_rate=1e-2, head_learning_rate=1e-2)


def tuned(model: CostModel, update: str, **settings: float) -> CostModel:
    return fine_tune(model, DATA, dataclasses.replace(ONE_PASS, update=update, **settings)).model


def moved(model: CostModel, before: dict[str, torch.Tensor]) -> set[str]:
    return {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}


# Every network, every update


@every_network
@pytest.mark.parametrize("update", ["all", "head", "low-rank"])
def test_the_result_is_a_plain_model_and_the_given_one_is_as_it_was(arch: str, update: str):
    model = small(arch)
    before = state_of(model)
    result = tuned(model, update, layer_decay=0.7)
    assert same_state(model, before)
    assert all(p.requires_grad for p in [*model.parameters(), *result.parameters()])
    assert (type(result), result.config) == (type(model), model.config)
    assert list(result.state_dict()) == list(before)
    assert moved(result, before)
    assert not result.training


@every_network
def test_the_head_alone_leaves_the_trunk_bit_for_bit(arch: str):
    model = small(arch)
    assert all(in_head(name) for name in moved(tuned(model, "head"), state_of(model)))


@every_network
def test_low_rank_moves_matrices_by_its_rank_and_nothing_else(arch: str):
    model = small(arch)
    before, result = state_of(model), tuned(model, "low-rank", rank=2, low_rank_learning_rate=1e-2)
    linear = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    changed = moved(result, before)
    assert changed
    assert changed <= linear
    for name in changed:
        difference = (result.state_dict()[name] - before[name]).double()
        singular = torch.linalg.svdvals(difference)
        assert (singular > 1e-4 * singular[0]).sum() <= 2, name


@every_network
def test_the_first_layer_is_furthest_and_the_score_s_own_is_nearest(arch: str):
    model = small(arch)
    depths = layer_depths(model, DATA.features)
    assert set(depths) == {name for name, _ in model.named_parameters()}
    assert set(range(max(depths.values()) + 1)) == set(depths.values()), "no place is left out"
    assert max(depths[name] for name in depths if in_head(name)) < max(depths.values())
    assert min(depths[name] for name in depths if in_head(name)) == 0


def test_the_order_of_a_network_s_layers_is_that_of_its_forward_pass():
    depths = layer_depths(small("tilenet"), DATA.features)
    order = ["body.0.weight", "body.3.weight", "body.6.weight", "head.weight"]
    assert [depths[name] for name in order] == [3, 2, 1, 0]


# Rates


def rates_of(model: CostModel, **settings: float) -> dict[str, float]:
    config = FineTuneConfig(learning_rate=1e-3, head_learning_rate=1e-2, update="all", **settings)
    update = Update(model, "all", config, DATA.features)
    names = {id(p): name for name, p in update.model.named_parameters()}
    return {names[id(p)]: group["lr"] for group in update.groups for p in group["params"]}


def test_each_layer_learns_at_the_decay_times_the_rate_of_the_next():
    rates = rates_of(small("tilenet"), layer_decay=0.5)
    assert rates["head.weight"] == pytest.approx(1e-2)
    assert rates["body.3.weight"] == pytest.approx(0.5 * rates["body.6.weight"])
    assert rates["body.0.weight"] == pytest.approx(0.25 * rates["body.6.weight"])


def test_without_decay_there_are_two_rates_the_encoder_s_and_the_head_s():
    rates = rates_of(small("tcl"), layer_decay=1.0)
    assert {rate for name, rate in rates.items() if in_head(name)} == {1e-2}
    assert {rate for name, rate in rates.items() if not in_head(name)} == {1e-3}


def test_the_number_of_labels_chooses_the_update():
    config = FineTuneConfig(low_rank_below=20)
    assert [config.update_for(n) for n in (1, 19, 20)] == ["low-rank", "low-rank", "all"]
    assert dataclasses.replace(config, update="head").update_for(100) == "head"
    assert fine_tune(small(), DATA, dataclasses.replace(ONE_PASS, low_rank_below=25)).update == "low-rank"


@pytest.mark.parametrize(("below", "update"), [(20, "all"), (25, "low-rank")])
def test_cross_validation_judges_the_update_that_all_labels_get(
    monkeypatch: pytest.MonkeyPatch, below: int, update: str
):
    """24 labels, 12 in each part of them: each part alone would get factors of low rank."""
    updates: list[str] = []

    def watched(*args: Any, **options: Any) -> FineTuneResult:
        result = fine_tune(*args, **options)
        updates.append(result.update)
        return result

    monkeypatch.setattr(methods, "fine_tune", watched)
    config = dataclasses.replace(ONE_PASS, low_rank_below=below)
    adapt_model("few-shot", Lesson(small(), DATA, DATA.features, get_device("epyc"), config=config))
    assert updates == [update] * 3, "on either part, and on all labels"


# Parameters that do not train


@pytest.mark.parametrize("update", ["all", "low-rank"])
def test_what_requires_no_gradient_stays_and_does_not_anchor(update: str):
    model = small("tlp")
    model.get_submodule("encoder").requires_grad_(False)
    before = state_of(model)
    result = tuned(model, update, anchor=1e6)
    assert not [name for name in moved(result, before) if name.startswith("encoder")]
    assert not next(result.get_submodule("encoder").parameters()).requires_grad, "it stays frozen in the result"


@pytest.mark.parametrize("arch", ["tilenet", "tcl", "tlp"])
@pytest.mark.parametrize("update", ["all", "head", "low-rank"])
def test_of_a_knowledge_base_the_column_learns_and_the_base_is_kept(arch: str, update: str):
    model = Progressive.around(small(arch), lateral=2)
    before = state_of(model)
    result = tuned(model, update)
    changed = moved(result, before)
    assert changed
    assert not [name for name in changed if name.startswith(("kb.", "fisher."))]
    assert same_state(model, before)


# What is published


def test_a_low_rank_update_is_stored_like_any_checkpoint(tmp_path):
    schema = get_schema("nest-gpu")
    model = small("tilenet", width=schema.width, hardware=schema.hardware)
    data = make_data(tasks=3, programs=8, width=schema.width, rows=1)
    result = fine_tune(model, data, dataclasses.replace(ONE_PASS, update="low-rank")).model
    config = CheckpointConfig(
        name="tilenet-test",
        version="1.0.0",
        arch="tilenet",
        model=result.config.as_dict(),
        feature_schema=schema.name,
        feature_version=schema.version,
        family="t4",
    )
    Checkpoint(config, result, get_device("t4")).save(tmp_path)
    assert same_state(Checkpoint.load(tmp_path).model, state_of(result))
