"""A knowledge base learns device after device: in which order, by equations 9 to 11, what moves, and what is kept."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from method_kit import state_of
from tchub.zoo.adapt.continual import ContinualConfig, add_device, fisher_diagonal, learning_order, start_base
from tchub.zoo.adapt.continual.phases import DistillationModel, gate, remember, reordered
from tchub.zoo.devices import get_device
from tchub.zoo.models import CostModel, ProgressiveNetwork, create
from tchub.zoo.training import RankingDataset, evaluate_model, get_loss, train
from tchub.zoo.training.errors import TrainingError

WIDTH = 6
SMALL = replace(ContinualConfig().recipe, groups_per_batch=3, programs_per_group=8, average=0.0)
FAST = ContinualConfig(
    learn_epochs=4, distill_epochs=4, recipe=SMALL, learn_rate=0.01,
    distill_rate=0.01, distill_period=10,
)  # fmt: skip


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


def accuracy(model: CostModel, column: int) -> float:
    return evaluate_model(model, device_data(column, seed=9))["pairwise"]


def moved(before: dict[str, torch.Tensor], model: torch.nn.Module) -> set[str]:
    """Parts of a base of which any bit is another."""
    return {n.split(".")[0] for n, t in model.state_dict().items() if not torch.equal(t, before[n])}


@pytest.fixture(scope="module")
def first() -> ProgressiveNetwork:
    """A base that knows device 0."""
    model = new_model()
    train(model, device_data(0), None, replace(FAST, learn_epochs=12, learn_rate=0.01).learning())
    return start_base(model, device_data(0), FAST, lateral=4)


def test_a_device_is_added_and_the_first_is_kept(first: ProgressiveNetwork) -> None:
    was = accuracy(first, 0), accuracy(first, 1)
    before = state_of(first)
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
    assert moved(state_of(base), added.kb) == {"kb", "column", "lateral", "fisher"}


def test_the_folder_of_another_run_is_refused(first: ProgressiveNetwork, tmp_path) -> None:
    config = replace(FAST, learn_epochs=1, distill_epochs=1)
    other = add_device(first, device_data(1), None, config, 0, tmp_path).kb
    for base, settings, seed in ((other, config, 0), (first, replace(config, beta=0.9), 0), (first, config, 1)):
        with pytest.raises(TrainingError):
            add_device(base, device_data(1), None, settings, seed, tmp_path)
    (tmp_path / "device.json").write_text("[")
    with pytest.raises(TrainingError):
        add_device(first, device_data(1), None, config, 0, tmp_path)


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
    unknown = replace(v100, name="unknown", spec=v100.spec.with_values(dict.fromkeys(v100.spec.values()), "unknown:"))
    sources = {"a100": get_device("a100"), "epyc": get_device("epyc"), "k80": get_device("k80"), "unknown": unknown}
    assert learning_order(get_device("t4"), sources) == ["epyc", "unknown", "a100", "k80"]


RNG = np.random.default_rng(0)


def numpy_loss(scores: np.ndarray, labels: np.ndarray) -> float:
    """`pairwise_rank` of one batch of full groups."""
    losses = []
    for s, y in zip(scores, labels, strict=True):
        terms = [np.log1p(np.exp(s[j] - s[i])) for i in range(len(s)) for j in range(len(s)) if y[i] > y[j]]
        losses.append(np.mean(terms))
    return float(np.mean(losses))


def test_the_gate_of_equations_10_and_11_is_never_outside_of_0_to_1() -> None:
    assert gate(torch.tensor([0.4, 0.4]), 0.4, 0.4).tolist() == [1, 1]  # no batch is worse than another
    assert gate(torch.tensor([0.1, 2.0]), 0.3, 0.9).tolist() == [1, 0]  # batches of later epochs


def test_the_loss_is_equation_9() -> None:
    base, teacher = new_model(seed=1).double(), new_model(seed=2).double()
    x = torch.from_numpy(device_data(0, tasks=2, each=5).features).double()
    chance = torch.Generator().manual_seed(3)
    labels, mask = torch.rand(2, 5, generator=chance).double(), torch.ones(2, 5, dtype=torch.bool)
    shapes = {name: p.shape for name, p in base.named_parameters()}
    importance = {name: torch.rand(shape, generator=chance).double() for name, shape in shapes.items()}
    way = {name: 0.01 * torch.randn(shape, generator=chance).double() for name, shape in shapes.items()}
    config = ContinualConfig(beta=0.3, strength=7.0)
    distillation = DistillationModel(base, teacher, np.array([0.2, 3.0]), config, importance)
    with torch.no_grad():
        for name, p in base.named_parameters():
            p.add_(way[name])
    got = distillation.training_loss(distillation.describe(x), labels, mask, get_loss("pairwise_rank"), RNG)
    student, taught = (m(x).detach().numpy().reshape(2, 5) for m in (base, teacher))
    phi = 1 - (numpy_loss(taught, labels.numpy()) - 0.2) / (3.0 - 0.2)
    # As a teacher's labels its scores would do: this loss looks at their order only.
    expected = 0.3 * numpy_loss(student, labels.numpy()) + 0.7 * phi * numpy_loss(student, taught)
    expected += 7.0 / 2 * sum(float((importance[n] * way[n].square()).sum()) for n in importance)
    assert float(got.detach()) == pytest.approx(expected, rel=1e-9)


def test_a_teacher_changes_the_order_of_labels_not_their_values() -> None:
    labels = torch.tensor([[1.0, 0.5, 0.25, 0.0], [0.2, 1.0, 0.0, 0.0]])
    mask = torch.tensor([[True, True, True, False], [True, True, False, False]])
    scores = torch.tensor([[-5.0, 80.0, 3.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    assert reordered(labels, scores, mask).tolist() == [[0.25, 1.0, 0.5, 0.0], [1.0, pytest.approx(0.2), 0.0, 0.0]]


def described_data(device: int) -> RankingDataset:
    """`device_data` for a network that reads the device from the last row, as a code of its own."""
    data = device_data(device, tasks=3)
    x = np.concatenate([data.features, np.zeros_like(data.features)], axis=1)
    x[:, 0, -1], x[:, 1, device] = 0, 1
    return replace(data, features=x)


def test_a_base_keeps_the_description_of_each_device_once() -> None:
    model = create("tcl", width=WIDTH, hardware=True, hidden=16, d_model=16, head=8)
    base = start_base(model, described_data(0), FAST, lateral=2)
    for device in (0, 2, 0):
        remember(base, described_data(device), FAST)
    known = base.known_devices()
    assert known.argmax(dim=1).tolist() == [2, 0]
    assert start_base(new_model(), device_data(0), FAST).known_devices() is None  # reads no device


def test_importance_is_the_squared_gradient_of_the_loss() -> None:
    """For a data set of one group, whose gradient is the only one."""
    model, data = new_model().double(), device_data(2, tasks=1, each=7)
    importance = fisher_diagonal(model.double(), data, replace(FAST, recipe=replace(FAST.recipe, programs_per_group=7)))
    labels, mask = torch.from_numpy(data.labels)[None], torch.ones(1, 7, dtype=torch.bool)
    rows = model.describe(torch.from_numpy(data.features).double())
    model.training_loss(rows, labels, mask, get_loss(FAST.recipe.loss), RNG).backward()
    for name, p in model.named_parameters():
        torch.testing.assert_close(importance[name], p.grad.square())
