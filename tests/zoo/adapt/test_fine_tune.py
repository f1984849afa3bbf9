"""Fine-tuning learns from a few labels without drifting, moves what it may, and refuses what teaches nothing."""

import dataclasses

import numpy as np
import pytest
import torch
from method_kit import NETWORKS, make_data, same_state, small, state_of, weights_of
from tchub.zoo.adapt import method
from tchub.zoo.adapt.adapt_model import adapt_model
from tchub.zoo.adapt.errors import AdaptError, LabelError
from tchub.zoo.adapt.fine_tune import UPDATES, FineTuneConfig, FineTuneResult, Update, fine_tune, in_head
from tchub.zoo.adapt.method import TrainingSet
from tchub.zoo.devices import get_device
from tchub.zoo.models import CostModel, ProgressiveNetwork
from tchub.zoo.training import RankingDataset, evaluate_model
from torch import nn

FAST = FineTuneConfig(learning_rate=2e-3, head_learning_rate=2e-3, anchor=0.0, update="all", epochs=25, patience=6)


@pytest.fixture
def model() -> CostModel:
    return small()


def test_a_few_labels_teach_unseen_programs(model: CostModel):
    result = fine_tune(model, make_data(), FAST)
    unseen = make_data(seed=9)
    assert evaluate_model(result.model, unseen)["pairwise"] > evaluate_model(model, unseen)["pairwise"] + 0.1
    assert result.validated
    assert 0 < result.epochs < len(result.val_curve)


def test_the_model_passed_in_is_unchanged_and_runs_repeat(model: CostModel):
    before = state_of(model)
    random_state = torch.get_rng_state()
    config = FineTuneConfig(epochs=5)
    first = fine_tune(model, make_data(noise=0.3), config)
    second = fine_tune(model, make_data(noise=0.3), config)
    assert same_state(model, before)
    assert same_state(second.model, state_of(first.model))
    assert first.val_curve == second.val_curve
    assert torch.equal(random_state, torch.get_rng_state()), "the caller's random numbers are left alone"


def test_the_anchor_keeps_the_model_near_its_start(model: CostModel):
    def moved(anchor: float) -> float:
        config = dataclasses.replace(FAST, anchor=anchor, val_share=0, blind_epochs=10)
        return float((weights_of(fine_tune(model, make_data(), config).model) - weights_of(model)).norm())

    assert moved(10.0) < 0.5 * moved(0.0)


def test_too_few_labels_to_validate_take_a_fixed_number_of_passes(model: CostModel):
    result = fine_tune(model, make_data(tasks=2, programs=4))
    assert not result.validated
    assert result.epochs == FineTuneConfig().blind_epochs
    assert result.val_curve == ()


@pytest.mark.parametrize(
    ("data", "latency", "message"),
    [
        (make_data(tasks=1), 1.0, "no ranking"),
        (make_data(tasks=8, programs=1), 1.0, "no ranking"),
        (make_data(), np.nan, ""),
    ],
    ids=["equal latencies", "one program a task", "no numbers"],
)
def test_labels_without_an_order_are_refused(model: CostModel, data: RankingDataset, latency: float, message: str):
    data.latency[:] = latency  # the array is the caller's, and may change after it was checked
    with pytest.raises(LabelError, match=message) as caught:
        fine_tune(model, data)
    assert caught.value.remedy


def test_what_cannot_be_moved_or_read_is_refused(model: CostModel):
    with pytest.raises(AdaptError, match="9 columns") as caught:
        fine_tune(model, make_data(width=9))
    assert (caught.value.fields["expected"], caught.value.fields["actual"]) == (6, 9)
    with pytest.raises(AdaptError, match="nothing"):
        fine_tune(model.requires_grad_(False), make_data())
    with pytest.raises(AdaptError) as unknown:
        FineTuneConfig(update="everything")
    assert "low-rank" in str(unknown.value.remedy)


DATA = make_data(tasks=3, programs=8)
ONE_PASS = FineTuneConfig(val_share=0, blind_epochs=2, learning_rate=1e-2, head_learning_rate=1e-2)


def tuned(model: CostModel, update: str, **settings: float) -> CostModel:
    return fine_tune(model, DATA, dataclasses.replace(ONE_PASS, update=update, **settings)).model


def moved(model: CostModel, before: dict[str, torch.Tensor]) -> set[str]:
    return {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}


@pytest.mark.parametrize("arch", NETWORKS)
@pytest.mark.parametrize("update", UPDATES)
def test_the_result_is_a_plain_model_in_which_the_update_alone_moved(arch: str, update: str):
    model = small(arch)
    before, settings = state_of(model), {"rank": 2, "low_rank_learning_rate": 1e-2} if update == "low-rank" else {}
    result = tuned(model, update, **settings)
    assert same_state(model, before)
    assert all(p.requires_grad for p in [*model.parameters(), *result.parameters()])
    assert (type(result), result.config) == (type(model), model.config)
    assert list(result.state_dict()) == list(before)
    assert not result.training
    changed = moved(result, before)
    assert changed
    if update == "low-rank":
        assert changed <= {f"{name}.weight" for name, m in model.named_modules() if isinstance(m, nn.Linear)}
        for name in changed:
            singular = torch.linalg.svdvals((result.state_dict()[name] - before[name]).double())
            assert (singular > 1e-4 * singular[0]).sum() <= 2, name


def test_encoder_and_head_have_rates_of_their_own():
    update = Update(small("tcl"), "all", FineTuneConfig(learning_rate=1e-3, head_learning_rate=1e-2))
    names = {id(p): name for name, p in update.model.named_parameters()}
    rates = {names[id(p)]: group["lr"] for group in update.groups for p in group["params"]}
    assert all(rate == (1e-2 if in_head(name) else 1e-3) for name, rate in rates.items())


@pytest.mark.parametrize(("below", "update"), [(20, "all"), (25, "low-rank")])
def test_cross_validation_judges_the_update_that_all_labels_get(
    monkeypatch: pytest.MonkeyPatch, below: int, update: str
):
    """24 labels, 12 in each part of them: each part alone would get factors of low rank."""
    updates: list[str] = []

    def watched(model: CostModel, data: RankingDataset, config: FineTuneConfig) -> FineTuneResult:
        updates.append(config.update_for(len(data)))
        return fine_tune(model, data, config)

    monkeypatch.setattr(method, "fine_tune", watched)
    config = dataclasses.replace(ONE_PASS, low_rank_below=below)
    adapt_model("few-shot", TrainingSet(small(), DATA, DATA.features, get_device("epyc"), config=config))
    assert updates == [update] * 3, "on either part, and on all labels"


@pytest.mark.parametrize("update", ["all", "low-rank"])
def test_what_requires_no_gradient_stays_and_does_not_anchor(update: str):
    model = small("tlp")
    model.get_submodule("encoder").requires_grad_(False)
    before = state_of(model)
    result = tuned(model, update, anchor=1e6)
    assert not [name for name in moved(result, before) if name.startswith("encoder")]
    assert not next(result.get_submodule("encoder").parameters()).requires_grad, "it stays frozen in the result"


@pytest.mark.parametrize("arch", ["tilenet", "tcl", "tlp"])
@pytest.mark.parametrize("update", UPDATES)
def test_of_a_knowledge_base_the_column_learns_and_the_base_is_kept(arch: str, update: str):
    model = ProgressiveNetwork.around(small(arch), lateral=2)
    before = state_of(model)
    changed = moved(tuned(model, update), before)
    assert changed
    assert not [name for name in changed if name.startswith(("kb.", "fisher."))]
    assert same_state(model, before)
