"""The guard lets no model become worse: a better one is adopted with its numbers, any other is not."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tchub.zoo.adapt import AdaptError, Pool, choose_holdout
from tchub.zoo.adapt.adapt_model import blend, cross_validate, nested_gain
from tchub.zoo.adapt.errors import LabelError
from tchub.zoo.adapt.guard import compare
from tchub.zoo.adapt.method import TrainedModel, TrainingSet
from tchub.zoo.devices import get_device
from tchub.zoo.models import CostModel
from tchub.zoo.models.base import ModelConfig
from tchub.zoo.training import RankingDataset, pairwise_accuracy
from tchub.zoo.training.metrics import mean_top_k


def latencies(tasks: int = 8, programs: int = 6, seed: int = 0):
    rng = np.random.default_rng(seed)
    return rng.uniform(1, 10, tasks * programs), np.repeat(np.arange(tasks), programs)


def test_a_better_model_is_adopted_with_its_numbers():
    latency, group = latencies()
    noise = np.random.default_rng(1).normal(size=len(latency))
    result = compare(noise, -latency, latency, group)
    assert result.decision == "adapted"
    assert result.adapted == 1.0
    assert result.base == pytest.approx(pairwise_accuracy(noise, latency, group))
    assert result.gain == pytest.approx(1 - result.base)
    assert 0 < result.interval[0] <= result.gain <= result.interval[1]
    assert (result.tasks, result.programs) == (8, 48)
    assert "rose" in result.reason


def test_a_worse_or_equal_or_broken_model_is_not():
    latency, group = latencies()
    worse = compare(-latency, np.random.default_rng(1).normal(size=len(latency)), latency, group)
    assert (worse.decision, worse.base) == ("kept", 1.0)
    assert worse.interval[1] < 0
    assert "did not rise" in worse.reason
    same = compare(-latency, -latency, latency, group)
    assert (same.decision, same.gain, same.interval) == ("kept", 0.0, (0.0, 0.0))
    broken = compare(latency, np.full(len(latency), np.nan), latency, group)
    assert broken.decision == "kept"
    assert "not numbers" in broken.reason


def test_a_gain_within_the_noise_says_so():
    latency, group = latencies(tasks=3, programs=4)
    base, other = np.where(group == 0, latency, -latency), -latency.copy()
    alone, confirmed, denied = (compare(base, other, latency, group, learnt_gain=gain) for gain in (None, 0.02, 0.0))
    for result in (alone, confirmed, denied):
        assert result.gain > 0
        assert result.interval[0] <= 0 < result.interval[1]
        assert "within the uncertainty" in result.reason
    assert [one.decision for one in (alone, confirmed, denied)] == ["kept", "adapted", "kept"]
    assert "too few to cross-validate" in alone.reason
    assert "confirms" in confirmed.reason


@pytest.mark.parametrize(("tasks", "programs"), [(24, 4), (1, 16)])
def test_the_interval_covers_the_true_gain_about_as_often_as_it_says(tasks: int, programs: int):
    """Two noisy models of known skill: nine of ten intervals hold the true difference, no fewer and not all of them."""
    rng = np.random.default_rng(0)

    def models(latency):
        return (-np.log(latency) + rng.normal(scale=s, size=len(latency)) for s in (0.8, 0.4))

    big = rng.uniform(1, 10, 20000)
    truth = [pairwise_accuracy(s, big, np.repeat(np.arange(20), 1000)) for s in models(big)]
    covered = 0
    for trial in range(200):
        latency, group = latencies(tasks=tasks, programs=programs, seed=trial)
        low, high = compare(*models(latency), latency, group, resamples=200).interval
        covered += low <= truth[1] - truth[0] <= high
    assert 168 <= covered <= 194


@given(st.integers(0, 1000))
def test_the_guard_agrees_with_the_metric(seed):
    """Of programs in five tasks, with many ties."""
    rng = np.random.default_rng(seed)
    latency, group = rng.uniform(1, 3, 24), rng.integers(0, 5, 24)
    base, adapted = (rng.integers(0, 4, 24).astype(float) for _ in range(2))
    result = compare(base, adapted, latency, group, resamples=50)
    assert result.base == pytest.approx(pairwise_accuracy(base, latency, group))
    assert result.adapted == pytest.approx(pairwise_accuracy(adapted, latency, group))
    after, before = (mean_top_k(scores, latency, group, 1) for scores in (adapted, base))
    assert result.first_gain == pytest.approx(after - before)
    assert result == compare(base, adapted, latency, group, resamples=50), "the seed decides"


class Line(CostModel):
    """Scores are a weighted sum of columns."""

    arch = "line"

    def __init__(self, weights: np.ndarray) -> None:
        super().__init__(ModelConfig(width=len(weights), hardware=False))
        self.weights = torch.nn.Parameter(torch.from_numpy(weights).float())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, 0] @ self.weights


def no_order(rng: np.random.Generator, tasks: int, programs: int) -> RankingDataset:
    """Programs whose latency has nothing to do with their features: no model knows anything."""
    group = np.repeat(np.arange(tasks), programs)
    features = rng.normal(size=(len(group), 1, 8)).astype(np.float32)
    return RankingDataset(features, np.exp(rng.normal(size=len(group))), group, tuple("abcdef"[:tasks]), np.ones(tasks))


def test_a_model_that_learnt_nothing_is_stored_about_one_time_in_four():
    """Two methods that learn nothing, four strengths of each: the best of eight is judged, as `adapt` judges it."""
    confirmed = asked_alone = chosen_by_same = 0
    for trial in range(120):
        rng = np.random.default_rng(trial)
        learn, held = no_order(rng, 6, 8), no_order(rng, 6, 5)
        base, *ends = (Line(rng.normal(size=8)) for _ in range(3))
        given = TrainingSet(base, learn, learn.features, get_device("epyc"))
        results = [cross_validate(lambda *_, end=end: TrainedModel(end, {}), base, given, near=True) for end in ends]
        judged = [one for one in results if one is not None]
        best = max(range(2), key=lambda number: judged[number].accuracy)
        model = blend(base, ends[best], judged[best].strength)
        gains = (nested_gain(judged), 1.0, judged[best].accuracy - judged[best].base)
        scores = base.score(held.features), model.score(held.features)
        verdicts = (compare(*scores, held.latency, held.group, resamples=60, learnt_gain=gain) for gain in gains)
        adapted = [verdict.decision == "adapted" for verdict in verdicts]
        confirmed, asked_alone, chosen_by_same = np.add((confirmed, asked_alone, chosen_by_same), adapted)
    assert 0.15 < confirmed / 120 < 0.33
    assert asked_alone / 120 > 0.4, "the hold-out by itself says yes every other time"
    assert chosen_by_same > 1.4 * confirmed, "the pairs that chose would nearly always agree"


def test_a_better_order_that_puts_slower_programs_first_is_not_adopted():
    """The base knows each task's best program and nothing else; the other model knows all but that one."""
    rng = np.random.default_rng(3)
    latency = np.concatenate([rng.permutation([1.0, 5, 6, 7, 8, 9]) for _ in range(12)])
    group = np.repeat(np.arange(12), 6)
    base = np.where(latency == 1, 1.0, 0.1 * rng.normal(size=len(latency)))
    other = np.where(latency == 1, -8.5, -latency)
    result = compare(base, other, latency, group)
    assert result.gain > 0
    assert result.first_interval[1] < 0
    assert (result.decision, "put first" in result.reason) == ("kept", True)


def test_a_hold_out_without_an_order_keeps_the_base():
    result = compare(np.arange(4.0), np.arange(4.0)[::-1], np.ones(4), np.zeros(4, int))
    assert (result.decision, result.pairs) == ("kept", 0)
    assert "no two of the 4 held-out programs differ" in result.reason
    assert np.isnan([result.base, result.adapted, result.gain, *result.interval]).all()


def test_a_latency_that_is_none_is_an_error():
    with pytest.raises(LabelError, match="positive"):
        compare(np.arange(4.0), np.arange(4.0), np.array([1, 2, np.nan, 3]), np.zeros(4, int))


def test_the_hold_out_is_spread_over_tasks_and_leaves_half_of_each():
    pool = Pool(np.repeat(np.arange(5), [40, 40, 40, 40, 6]), ("conv2d",) * 5)
    picks = choose_holdout(pool, 20, np.random.default_rng(0))
    assert len(set(picks.tolist())) == 20
    assert np.bincount(pool.task[picks], minlength=5).tolist() == [5, 5, 5, 5, 0], "the small task is spared"
    few = choose_holdout(pool, 9, np.random.default_rng(0))
    assert sorted(np.bincount(pool.task[few], minlength=5).tolist()) == [0, 0, 0, 4, 5]
    assert len(choose_holdout(pool, 150, np.random.default_rng(0))) == 80


@pytest.mark.parametrize(("count", "per_task"), [(3, 40), (20, 6)])
def test_a_hold_out_too_small_to_judge_is_an_error(count, per_task):
    pool = Pool(np.repeat(np.arange(5), per_task), ("conv2d",) * 5)
    with pytest.raises(AdaptError, match="hold-out"):
        choose_holdout(pool, count, np.random.default_rng(0))
