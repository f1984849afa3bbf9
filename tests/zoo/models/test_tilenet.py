"""TileNet: a pretrained score, corrected by measured programs without a gradient step."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tchub.zoo.features import get_schema
from tchub.zoo.models import TileNet, create
from tchub.zoo.models.base import MAX_DEVICES
from tchub.zoo.models.context import HALF_TREES, MAX_CONTEXT, MIN_TREES, share_of_trees
from tchub.zoo.models.tilenet import CONTEXT_SIZES, MIN_QUERIES
from tchub.zoo.models.trees import grow_task_trees
from tchub.zoo.training import get_loss, pairwise_accuracy

WIDTH = 12
seeds = st.integers(0, 10_000)


def new_model(seed: int = 0, **settings: int) -> TileNet:
    torch.manual_seed(seed)
    return create("tilenet", **{"width": WIDTH, "hidden": 16, "embedding": 4} | settings)


def task(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Programs (n, 1, WIDTH) and seconds that follow a rule which no pretrained weights know."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 6, (n, 1, WIDTH)).astype(np.float32)
    cost = 0.5 * x[:, 0, 0] - 0.4 * x[:, 0, 1] + 0.3 * np.abs(x[:, 0, 2] - 3)
    return x, 1e-4 * np.exp(cost + 0.02 * rng.standard_normal(n))


@settings(max_examples=15)
@given(seeds, st.integers(1, 24), st.sampled_from([1e-3, 0.5, 1e6]))
def test_neither_the_order_of_the_measured_programs_nor_the_unit_of_time_matters(
    seed: int, n: int, unit: float
) -> None:
    """Another unit moves all scores alike."""
    model, (x, latency) = new_model(), task(n + 10, seed)
    order = np.random.default_rng(seed).permutation(n)
    straight = model.score_given(x[n:], x[:n], latency[:n])
    others = model.score_given(x[n:], x[:n][order], latency[:n][order] * unit)
    assert np.allclose(others, straight - np.log(unit), atol=1e-6)


@settings(max_examples=15)
@given(seeds, st.integers(1, 30))
def test_the_posterior_is_that_of_a_gaussian_process(seed: int, n: int) -> None:
    """Conditioning the joint normal distribution of all programs, written without any of the model's code."""
    rng = np.random.default_rng(seed)
    scores, points = rng.standard_normal(n + 6), rng.standard_normal((n + 6, 4))
    measured = 5 + rng.standard_normal(n)
    model = new_model()
    width, height, slope, noise = np.exp(model.kernel.detach().double().numpy())
    apart = ((points[:, None] - points[None]) ** 2).sum(-1)
    kernel = 100 + height * np.exp(-0.5 * width * apart / 4) + slope * points @ points.T / 4
    level = (measured - scores[:n]).mean()
    error = measured - scores[:n] - level
    expected = scores + level + kernel[:, :n] @ np.linalg.solve(kernel[:n, :n] + (noise + 1e-4) * np.eye(n), error)
    with torch.inference_mode():
        found = model.posterior(*(torch.from_numpy(a)[None] for a in (scores, points, measured)))
    assert np.allclose(found[0].numpy(), expected, atol=1e-6)


def test_trees_have_a_say_that_is_bounded_by_the_labels() -> None:
    def smooth(context: np.ndarray, latency: np.ndarray, x: np.ndarray) -> np.ndarray:
        """The posterior mean alone, as its parts tell it: (N,)."""
        with torch.inference_mode():
            rows = model.eval().describe(torch.from_numpy(np.concatenate([context, x]))).double()[None]
            mean = model.posterior(rows[:, :, 0], rows[:, :, 1:], -torch.from_numpy(np.log(latency))[None])
        return mean[0, len(context) :].numpy()

    model, (x, latency) = new_model(), task(60)
    for n in (MIN_TREES - 1, HALF_TREES, MIN_TREES, 12, 36):
        context, known, rest = x[:n], latency[:n], x[36:]
        speed = -np.log(known)
        share = share_of_trees(model, context, model.rows(context), speed) if n >= MIN_TREES else 0.0
        assert 0 <= share <= n / (n + HALF_TREES)
        trees = speed.mean() + grow_task_trees(context[:, 0].copy(), speed - speed.mean()).inplace_predict(rest[:, 0])
        expected = (1 - share) * smooth(context, known, rest) + share * trees
        assert np.allclose(model.score_given(rest, context, known), expected, atol=1e-6), n


def test_of_too_many_measured_programs_the_last_are_used() -> None:
    model, (x, latency) = new_model(), task(MAX_CONTEXT + 40)
    context, known, rest = x[:-20], latency[:-20], x[-20:]
    found = model.score_given(rest, context, known)
    assert np.array_equal(found, model.score_given(rest, context[20:], known[20:]))
    assert not np.array_equal(found, model.score_given(rest, context[21:], known[21:]))


def test_sixteen_labels_teach_a_rule_that_the_weights_do_not_know() -> None:
    model, (x, latency) = new_model(), task(216)
    model.prepare(torch.from_numpy(x))

    def accuracy(labels: np.ndarray, known: int = 16) -> float:
        found = model.score_given(x[16:], x[:known], labels[:known])
        return pairwise_accuracy(found, latency[16:], np.zeros(200, np.int64))

    blind, taught = accuracy(latency, known=0), accuracy(latency)
    misled = accuracy(np.random.default_rng(0).permutation(latency[:16]))
    assert taught > 0.7
    assert taught > max(blind, misled) + 0.1


def test_a_column_that_never_changed_is_shut() -> None:
    """Its weights are random still: a value never seen must not reach them."""
    model, (x, _) = new_model(), task(20)
    x[:, :, 5] = 7
    model.prepare(torch.from_numpy(x))
    other = x.copy()
    other[:, :, 5] = -100
    assert np.array_equal(model.score(other), model.score(x))
    other[:, :, 4] += 1
    assert not np.array_equal(model.score(other), model.score(x))


def batch(model: TileNet, lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows of `describe`, labels and mask of groups of these lengths."""
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    x, latency = task(sum(lengths))
    labels = torch.zeros(mask.shape)
    labels[mask] = torch.from_numpy(latency.min() / latency).float()
    return model.describe(torch.from_numpy(x)), labels, mask


def of_device(model: TileNet, sheet: float, n: int = 30) -> torch.Tensor:
    """Programs (n, 1, width) of a device whose sheet holds one number in every column; the programs are equal."""
    x = torch.rand(n, 1, model.config.width, generator=torch.Generator().manual_seed(0))
    model.device_slot(x).fill_(sheet)
    return x


def new_reader(device_dropout: float) -> TileNet:
    """A model of two devices, of the sheets 1 and 2."""
    torch.manual_seed(0)
    model = create("tilenet", width=get_schema("nest-gpu").width, hidden=16, device_dropout=device_dropout)
    model.prepare(torch.cat([of_device(model, 1), of_device(model, 2)]))
    return model.eval()


def test_an_unknown_device_is_read_without_its_sheet_and_a_known_one_with_it() -> None:
    model = new_reader(0.5)
    one, two, other, another = (model(of_device(model, sheet)) for sheet in (1, 2, 5, 9))
    assert torch.equal(other, another)
    assert not torch.allclose(one, two)
    assert not torch.allclose(one, other)


def test_without_device_dropout_every_sheet_is_read_and_none_is_noted() -> None:
    """So are all checkpoints that were made before the setting was."""
    model = new_reader(0.0)
    assert not torch.allclose(model(of_device(model, 5)), model(of_device(model, 9)))
    assert "devices" not in model.state_dict()


def test_an_admitted_device_is_known_and_the_oldest_makes_room() -> None:
    model = new_reader(0.5)
    blind = model(of_device(model, 5))
    model.admit(of_device(model, 5))
    assert not torch.allclose(model(of_device(model, 5)), blind)
    for sheet in range(100, 100 + MAX_DEVICES - 1):
        model.admit(of_device(model, sheet))
    noted = model.get_buffer("devices")[:, 0].tolist()
    assert noted[-1] == 5
    assert len(set(noted)) == MAX_DEVICES


@pytest.mark.parametrize(
    "lengths",
    [
        [40, 40],
        [40, 9, 2],  # groups that end before the others' context does
        [2, 3],  # none long enough for an episode
        [min(CONTEXT_SIZES) + MIN_QUERIES, 2],
    ],
)
def test_the_loss_is_finite_whatever_the_groups(lengths: list[int]) -> None:
    for seed in range(len(CONTEXT_SIZES)):
        model = new_model()
        value = model.training_loss(*batch(model, lengths), get_loss("log_ranknet"), np.random.default_rng(seed))
        value.backward()
        assert torch.isfinite(value)
        assert all(p.grad is None or torch.isfinite(p.grad).all() for p in model.parameters())


def test_an_episode_is_judged_on_the_programs_that_it_does_not_know() -> None:
    judged: list[torch.Tensor] = []

    def loss(scores: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        judged.append(labels[mask])
        return scores.sum()

    model = new_model()
    rows, labels, mask = batch(model, [50])
    model.training_loss(rows, labels, mask, loss, np.random.default_rng(0))
    everyone, unknown = judged
    assert torch.equal(everyone, labels[0])
    assert len(everyone) - len(unknown) in CONTEXT_SIZES
    assert torch.equal(unknown, labels[0, -len(unknown) :])
