"""What the benchmark of Fasor's cost model counts: a scale from other tasks, and labels of tasks that are unlike."""

import numpy as np
import pytest
from tchub.zoo.training import RankingDataset

from scripts.benchmarks.heads import LABELS, Target, judge, scale_of


class Scores:
    """Stands in for a ranker whose scores are a column."""

    def score(self, features: np.ndarray) -> np.ndarray:
        return features[:, 0, 0].astype(np.float64)


def data(factor: float, tasks: int = 4, programs: int = 10, seed: int = 0) -> RankingDataset:
    """Tasks of any level in which the first column times the factor is -log(latency)."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((tasks * programs, 25, 22)).astype(np.float32)
    group = np.repeat(np.arange(tasks), programs)
    latency = np.exp(rng.standard_normal(tasks)[group] - factor * x[:, 0, 0].astype(np.float64))
    return RankingDataset(x, latency, group, tuple(map(str, range(tasks))), np.ones(tasks))


def test_the_scale_is_that_of_the_validation_tasks() -> None:
    assert scale_of(Scores().score(data(3.0).features), data(3.0)) == pytest.approx(3.0)
    assert scale_of(np.zeros(40), data(3.0)) == 0.0
    perfect, wrong = judge(Scores(), data(3.0), data(3.0, seed=1)), judge(Scores(), data(1.0), data(3.0, seed=1))
    assert perfect == {"top1": 1, "pairwise": 1, "latency": pytest.approx(1)}
    assert wrong == {"top1": 1, "pairwise": 1, "latency": pytest.approx(1 - (2 / 3) ** 2)}, "a third of the spread"


def test_what_is_measured_is_of_ten_tasks_and_drawn_by_the_seed() -> None:
    own = data(1.0, tasks=16, programs=30)
    target = Target(own, own, ("matmul",) * 16)
    chosen = [target.labels(seed) for seed in (0, 0, 1)]
    assert {len(one) for one in chosen} == {LABELS}
    assert {len(np.unique(one.group)) for one in chosen} == {10}
    assert np.array_equal(chosen[0].latency, chosen[1].latency)
    assert not np.array_equal(chosen[0].latency, chosen[2].latency)
