"""Continual knowledge distillation: equations 8 to 11, what is kept, what may be stopped, and who teaches whom."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tchub.zoo.adapt.continual import (
    PAPER,
    AddedDevice,
    ContinualConfig,
    SourceRules,
    add_device,
    choose_sources,
    distill,
    fisher_average,
    fisher_diagonal,
    gate,
    learn,
    rank_agreement,
    remember,
    start_base,
)
from tchub.zoo.adapt.continual.distill import Lesson, drift, reordered
from tchub.zoo.adapt.errors import SourceMismatchError
from tchub.zoo.devices import get_device
from tchub.zoo.models import CostModel, Progressive, create
from tchub.zoo.training import RankingDataset, evaluate_model, get_loss, train
from tchub.zoo.training.errors import ResumeError, TrainConfigError

WIDTH = 6
FAST = ContinualConfig(
    learn_epochs=4, distill_epochs=4, groups_per_batch=3, programs_per_group=8, average=0.0, learn_rate=0.01,
    distill_rate=0.01, distill_period=10,
)  # fmt: skip
RNG = np.random.default_rng(0)


def device_data(column: int, tasks: int = 6, each: int = 24, seed: int = 0) -> RankingDataset:
    """A device on which the speed of a program is one of its columns; the last column says which device it is."""
    rng = np.random.default_rng([seed, column])
    group = np.repeat(np.arange(tasks), each)
    x = rng.standard_normal((len(group), 1, WIDTH)).astype(np.float32)
    x[:, 0, -1] = column
    speed = x[:, 0, column]
    return RankingDataset(x, np.exp(-speed - 5), group, tuple(f"t{i}" for i in range(tasks)), np.ones(tasks))


def new_model(arch: str = "tenset-mlp", seed: int = 0) -> CostModel:
    torch.manual_seed(seed)
    return create(arch, width=WIDTH, hidden=16)


@pytest.fixture(scope="module")
def first() -> Progressive:
    """A base that knows device 0."""
    model = new_model()
    train(model, device_data(0), None, replace(FAST, learn_epochs=12, learn_rate=0.01).learning())
    return start_base(model, device_data(0), FAST, lateral=4)


def accuracy(model: CostModel, column: int) -> float:
    return evaluate_model(model, device_data(column, seed=9))["pairwise"]


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def moved(before: dict[str, torch.Tensor], model: torch.nn.Module) -> set[str]:
    """Parts of a base of which any bit is another."""
    return {n.split(".")[0] for n, t in model.state_dict().items() if not torch.equal(t, before[n])}


# The phases


def test_learning_a_device_leaves_the_base_bit_for_bit(first: Progressive) -> None:
    model = Progressive.around(first.base_model())
    before = weights(model)
    learn(model, device_data(1), device_data(1, seed=1), FAST)
    assert moved(before, model) == {"column", "lateral"}


def test_teaching_the_base_leaves_the_column_bit_for_bit(first: Progressive) -> None:
    model = Progressive.around(first.base_model())
    before = weights(model)
    distill(model, device_data(1), None, FAST)
    assert moved(before, model) == {"kb"}


def test_a_device_is_added_and_the_first_is_kept(first: Progressive) -> None:
    was = accuracy(first, 0), accuracy(first, 1)
    before = weights(first)
    added = add_device(first, device_data(1), device_data(1, seed=1), replace(FAST, distill_epochs=12))
    assert moved(before, first) == set()
    assert added.column["pairwise"] > was[1] + 0.2
    assert added.base_before["pairwise"] < added.base_after["pairwise"] - 0.1
    assert accuracy(added.kb, 1) > was[1] + 0.1
    assert added.adapted.config.as_dict()["column"] is True
    assert added.kb.config.as_dict()["column"] is False
    assert 0 < added.distilled.gate.open < 1


def test_consolidation_forgets_less(first: Progressive) -> None:
    """On a toy pair of devices that want other columns and look alike (the last column is of no use)."""
    config = replace(FAST, distill_epochs=12, beta=1.0, gated=False)
    data = device_data(1)
    freely, held = (add_device(first, data, None, replace(config, strength=s)).kb for s in (0.0, 10_000.0))
    assert accuracy(held, 0) > accuracy(freely, 0) + 0.05


def test_a_base_is_as_large_after_five_devices_as_after_one(first: Progressive) -> None:
    base, sizes = first, set()
    for column in range(1, 6):
        base = add_device(
            base, device_data(column % (WIDTH - 1)), None, replace(FAST, learn_epochs=1, distill_epochs=1)
        ).kb
        sizes.add(sum(t.numel() for t in base.state_dict().values()))
    assert len(sizes) == 1
    assert sizes == {sum(t.numel() for t in first.state_dict().values())}


@pytest.mark.parametrize("arch", ["tilenet", "tcl", "lstm", "mtl-tlp", "tabnet", "atformer-1l"])
def test_other_networks_learn_a_device_too(arch: str) -> None:
    torch.manual_seed(0)
    sizes = {"tcl": {"d_model": 16, "hidden": 16, "head": 8}, "atformer-1l": {"hidden": 16, "feedforward": 16}}
    model = create(arch, width=WIDTH, hardware=False, **sizes.get(arch, {"hidden": 16}))
    base = start_base(model, device_data(0, tasks=2), FAST, lateral=2)
    added = add_device(base, device_data(1, tasks=2), None, replace(FAST, learn_epochs=1, distill_epochs=1))
    assert moved(weights(base), added.kb) == {"kb", "column", "lateral", "fisher"}


# Equations 9 to 11


def numpy_loss(scores: np.ndarray, labels: np.ndarray) -> float:
    """`pairwise_rank` of one batch of full groups."""
    found = []
    for s, y in zip(scores, labels, strict=True):
        terms = [np.log1p(np.exp(s[j] - s[i])) for i in range(len(s)) for j in range(len(s)) if y[i] > y[j]]
        found.append(np.mean(terms))
    return float(np.mean(found))


def test_the_gate_is_equations_10_and_11() -> None:
    e = np.array([0.3, 0.9, 0.5, 0.7])
    expected = 1 - (e - e.min()) / (e.max() - e.min())
    np.testing.assert_allclose(gate(torch.from_numpy(e), e.min(), e.max()).numpy(), expected)
    assert gate(torch.tensor([0.4, 0.4]), 0.4, 0.4).tolist() == [1, 1]  # no batch is worse than another
    assert gate(torch.tensor([0.1, 2.0]), 0.3, 0.9).tolist() == [1, 0]  # batches of later epochs


def test_the_loss_is_equation_9() -> None:
    base, teacher = new_model(seed=1).double(), new_model(seed=2).double()
    x = torch.from_numpy(device_data(0, tasks=2, each=5).features).double()
    labels, mask = (
        torch.rand(2, 5, generator=torch.Generator().manual_seed(3)).double(),
        torch.ones(2, 5, dtype=torch.bool),
    )
    worth = {
        n: torch.rand(p.shape, generator=torch.Generator().manual_seed(4)).double() for n, p in base.named_parameters()
    }
    config = ContinualConfig(beta=0.3, strength=7.0)
    lesson = Lesson(base, teacher, np.array([0.2, 3.0]), config, worth)
    way = {
        n: 0.01 * torch.randn(p.shape, generator=torch.Generator().manual_seed(5)).double()
        for n, p in base.named_parameters()
    }
    with torch.no_grad():
        for name, p in base.named_parameters():
            p.add_(way[name])

    got = lesson.training_loss(lesson.describe(x), labels, mask, get_loss("pairwise_rank"), RNG)

    student, told = (m(x).detach().numpy().reshape(2, 5) for m in (base, teacher))
    phi = 1 - (numpy_loss(told, labels.numpy()) - 0.2) / (3.0 - 0.2)
    # As a teacher's labels its scores would do: this loss looks at their order only.
    expected = 0.3 * numpy_loss(student, labels.numpy()) + 0.7 * phi * numpy_loss(student, told)
    expected += 7.0 / 2 * sum(float((worth[n] * way[n].square()).sum()) for n in worth)
    assert float(got.detach()) == pytest.approx(expected, rel=1e-9)


def test_a_teacher_changes_the_order_of_labels_not_their_values() -> None:
    labels = torch.tensor([[1.0, 0.5, 0.25, 0.0], [0.2, 1.0, 0.0, 0.0]])
    mask = torch.tensor([[True, True, True, False], [True, True, False, False]])
    scores = torch.tensor([[-5.0, 80.0, 3.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    assert reordered(labels, scores, mask).tolist() == [[0.25, 1.0, 0.5, 0.0], [1.0, pytest.approx(0.2), 0.0, 0.0]]


def test_extremes_of_the_gate_are_over_the_whole_data_set(first: Progressive) -> None:
    model = Progressive.around(first.base_model())
    found = distill(model, device_data(1), None, replace(FAST, distill_epochs=1)).gate
    assert found.batches == 6  # 6 tasks of 24 programs in groups of 8, 3 groups a batch
    assert found.least < found.mean < found.most


def test_without_strength_nothing_holds_the_base() -> None:
    model = new_model()
    worth = {n: torch.ones_like(p) for n, p in model.named_parameters()}
    free, held = (Lesson(model, model, np.ones(1), ContinualConfig(strength=s), worth) for s in (0.0, 2.0))
    with torch.no_grad():
        model.get_parameter("decoder.bias").add_(3.0)
    assert float(held.penalty().detach()) == pytest.approx(9.0)
    assert float(free.penalty().detach()) == 0


# Rehearsal, which is not the paper's


def described_data(device: int, seed: int = 0) -> RankingDataset:
    """`device_data` for a network that reads the device from the last row, as a code of its own."""
    data = device_data(device, tasks=3, seed=seed)
    x = np.concatenate([data.features, np.zeros_like(data.features)], axis=1)
    x[:, 0, -1], x[:, 1, device] = 0, 1
    return replace(data, features=x)


def described_model() -> CostModel:
    torch.manual_seed(0)
    return create("tcl", width=WIDTH, hardware=True, hidden=16, d_model=16, head=8)


def test_a_base_keeps_the_description_of_each_device_once() -> None:
    base = start_base(described_model(), described_data(0), FAST, lateral=2)
    for device in (0, 2, 0):
        remember(base, described_data(device), FAST)
    known = base.known_devices()
    assert known is not None
    assert known.argmax(dim=1).tolist() == [2, 0]
    assert start_base(new_model(), device_data(0), FAST).known_devices() is None  # reads no device


def test_what_was_said_of_known_devices_is_rehearsed_on_the_new_ones_programs() -> None:
    """A device that says the opposite: without the rehearsal its lesson would turn the first one over."""
    model = described_model()
    train(model, described_data(0), None, replace(FAST, learn_epochs=20, groups_per_batch=2).learning())
    base = start_base(model, described_data(0), FAST, lateral=2)
    new = replace(described_data(1), latency=np.exp(described_data(1).features[:, 0, 0] - 5.0))
    config = replace(FAST, strength=0.0, beta=1.0, gated=False, learn_epochs=1, distill_epochs=12, groups_per_batch=2)
    kept, lost = (add_device(base, new, None, replace(config, rehearsal=r)).kb for r in (5.0, 0.0))
    first = described_data(0, seed=9)
    was, now, without = (evaluate_model(m, first)["pairwise"] for m in (base, kept, lost))
    assert now > without + 0.1
    assert now > was - 0.15


def test_drift_is_of_differences_within_a_group() -> None:
    mask = torch.tensor([[True, True, False], [True, True, True]])
    was = torch.tensor([1.0, 3.0, 0.0, 3.0, 6.0])
    level = torch.tensor([5.0, 5.0, -7.0, -7.0, -7.0])  # of a task; no order hangs on it
    still = torch.zeros(5)
    assert float(drift(torch.stack([was, was + level, still], dim=1), mask)) == pytest.approx(0)
    turned = torch.tensor([3.0, 1.0, 0.0, 3.0, 6.0])
    # The first group's differences from its mean, -1 and 1, turn over: (2^2 + 2^2) / 1, a mean over 5 programs.
    assert float(drift(torch.stack([was, turned, still + 0.5], dim=1), mask)) == pytest.approx(8 / 5 + 0.5)


# The Fisher diagonal


def test_worth_is_the_squared_gradient_of_the_loss() -> None:
    """Against differences of the loss, for a data set of one group."""
    model, data = new_model().double(), device_data(2, tasks=1, each=7)
    worth = fisher_diagonal(model.double(), data, replace(FAST, programs_per_group=7))
    labels, mask = torch.from_numpy(data.labels)[None], torch.ones(1, 7, dtype=torch.bool)
    x = torch.from_numpy(data.features).double()

    def loss() -> float:
        with torch.no_grad():
            return float(model.training_loss(model.describe(x), labels, mask, get_loss(FAST.loss), RNG))

    for name in ("decoder.weight", "encoder.0.bias"):
        p = model.get_parameter(name).view(-1)
        for i in range(0, p.numel(), 5):
            with torch.no_grad():
                p[i] += 1e-5
                up = loss()
                p[i] -= 2e-5
                slope = (up - loss()) / 2e-5
                p[i] += 1e-5
            assert float(worth[name].view(-1)[i]) == pytest.approx(slope**2, rel=1e-3, abs=1e-9)


def test_worth_adds_up_over_devices(first: Progressive) -> None:
    one = {n: w.clone() for n, w in first.fisher_diagonal().items()}
    again = Progressive.around(first.base_model())
    for _ in range(2):
        remember(again, device_data(0), FAST)
    for name, total in again.fisher_diagonal().items():
        torch.testing.assert_close(total, 2 * one[name])
    assert all((w >= 0).all() for w in one.values())


def test_what_a_model_depends_on_decides_an_average() -> None:
    a, b = new_model(seed=0), new_model(seed=1)
    ones = {n: torch.ones_like(p) for n, p in a.named_parameters()}
    half = fisher_average([a, b], [ones, ones])
    for name, p in half.named_parameters():
        torch.testing.assert_close(p, (a.get_parameter(name) + b.get_parameter(name)) / 2)
    only = fisher_average([a, b], [ones, ones], [0.0, 2.0])
    torch.testing.assert_close(only.state_dict(), b.state_dict())
    needed = ones | {"decoder.weight": torch.full_like(a.get_parameter("decoder.weight"), 1e9)}
    torch.testing.assert_close(
        fisher_average([a, b], [needed, ones]).get_parameter("encoder.0.weight"), b.get_parameter("encoder.0.weight"),
        rtol=0.1, atol=0.1,
    )  # fmt: skip
    with pytest.raises(SourceMismatchError):
        fisher_average([a, new_model("tilenet")], [ones, ones])
    with pytest.raises(ValueError, match="average"):
        fisher_average([a, b], [ones, ones], [0.0, 0.0])


# Stopped runs


class Stop(Exception):
    """A kill."""


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
    assert resumed.learnt.resumed_from + resumed.distilled.training.resumed_from > 0


@pytest.fixture(scope="module")
def whole(first: Progressive) -> AddedDevice:
    """The run that was not killed."""
    return add_device(first, device_data(1), device_data(1, seed=1), FAST, 3)


def test_the_folder_of_another_run_is_refused(first: Progressive, tmp_path) -> None:
    config = replace(FAST, learn_epochs=1, distill_epochs=1)
    other = add_device(first, device_data(1), None, config, 0, tmp_path).kb
    for base, settings, seed in ((other, config, 0), (first, replace(config, beta=0.9), 0), (first, config, 1)):
        with pytest.raises(ResumeError):
            add_device(base, device_data(1), None, settings, seed, tmp_path)
    (tmp_path / "device.json").write_text("[")
    with pytest.raises(ResumeError):
        add_device(first, device_data(1), None, config, 0, tmp_path)


def test_programs_of_other_features_are_refused(first: Progressive) -> None:
    narrow = device_data(1)
    narrow = replace(narrow, features=narrow.features[:, :, :4])
    for call in (add_device, learn, distill):
        with pytest.raises(SourceMismatchError, match="4"):
            call(first, narrow)


# Settings


def test_the_papers_settings() -> None:
    """Sections 6 and 7.1.3."""
    assert (PAPER.beta, PAPER.strength, PAPER.learn_rate, PAPER.learn_period) == (0.5, 10_000, 7e-4, 10)
    rates = [PAPER.distilling().learning_rate_at(epoch) for epoch in (0, 4, 5, 10)]
    assert rates == pytest.approx([7e-4, 7e-4, 7e-5, 7e-6])
    assert PAPER.learning().learning_rate_at(10) == PAPER.learning().learning_rate_at(0) == 7e-4
    divided = PAPER.divided(100, 5)
    assert (divided.learn_epochs, divided.distill_epochs) == (10, 10)
    assert PAPER.divided(3, 5).learn_epochs == 1


@pytest.mark.parametrize(
    "bad", [{"beta": 1.1}, {"strength": -1.0}, {"column": "last"}, {"loss": 3}, {"learn_epochs": 0}]
)
def test_impossible_settings_are_refused(bad: dict) -> None:
    with pytest.raises(TrainConfigError):
        ContinualConfig(**bad)


# Sources


SOURCES = {name: get_device(name) for name in ("v100", "t4", "mi50", "epyc")}


def names(target: str, **more) -> list[tuple[str, bool]]:
    return [(s.name, s.weight > 0) for s in choose_sources(get_device(target), SOURCES, **more)]


def test_the_most_alike_source_is_learnt_last_and_a_cpu_teaches_no_gpu() -> None:
    assert names("k80")[0] == ("epyc", False)
    assert dict(names("k80")) == {"epyc": False, "mi50": True, "t4": True, "v100": True}


def test_a_measured_agreement_decides_before_the_spec_sheet() -> None:
    agreement = {"v100": 0.6, "t4": 0.2, "mi50": 0.5}
    assert names("k80", agreement=agreement) == [("epyc", False), ("t4", False), ("mi50", True), ("v100", True)]
    found = {s.name: s.weight for s in choose_sources(get_device("k80"), SOURCES, agreement)}
    assert found["v100"] == 1
    assert found["mi50"] == pytest.approx(0.5 / 0.6)


def test_a_source_that_misleads_or_taught_little_is_left_out() -> None:
    assert dict(names("k80", agreement={"v100": -0.4, "t4": 0.01, "mi50": float("nan")})) == {
        "epyc": False, "t4": False, "v100": False, "mi50": True,
    }  # fmt: skip
    assert dict(names("k80", gates={"v100": 0.02}))["v100"] is False
    assert dict(names("k80", agreement={"t4": 0.2, "v100": 0.6}, rules=SourceRules(least_share=0.1)))["t4"] is True


def test_agreement_is_one_for_the_right_order_and_minus_one_for_the_reverse() -> None:
    data = device_data(0, tasks=2)
    model = new_model()
    order = model.score(data.features)
    right = replace(data, latency=np.exp(-order * 50))
    assert rank_agreement(model, right) == 1
    assert rank_agreement(model, replace(data, latency=1 / right.latency)) == -1
