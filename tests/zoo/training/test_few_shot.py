"""Ranking a task of which a few programs are measured: who is drawn, and who is judged."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from tchub.zoo.models import CostModel, TileNet, create
from tchub.zoo.training import RankingDataset
from tchub.zoo.training.evaluation import draw_labels, evaluate_unknown, scores_given

SIZES = (30, 7, 1, 2)
sizes = st.lists(st.integers(0, 12), min_size=1, max_size=5)
amounts = st.integers(0, 20)


def toy_data(sizes: tuple[int, ...] | list[int] = SIZES, seed: int = 0) -> RankingDataset:
    """Tasks of so many programs, in no order; a program's speed is one of its columns, another in each task."""
    rng = np.random.default_rng(seed)
    group = rng.permutation(np.repeat(np.arange(len(sizes)), sizes)).astype(np.int64)
    x = rng.standard_normal((len(group), 1, 6)).astype(np.float32)
    speed = x[np.arange(len(group)), 0, group % 6]
    weights = np.arange(1.0, 1 + len(sizes))
    return RankingDataset(x, np.exp(3.0 * group - speed), group, tuple(f"task{i}" for i in range(len(sizes))), weights)


def new_model(arch: str = "tilenet") -> CostModel:
    torch.manual_seed(0)
    return create(arch, width=6, hidden=8)


# The labels


@given(sizes, amounts, st.integers(0, 99))
def test_labels_are_drawn_in_each_task_and_at_most_half_of_it(sizes: list[int], labels: int, seed: int) -> None:
    data = toy_data(sizes)
    known = draw_labels(data, labels, seed)
    assert known.shape == (len(data),)
    assert known.dtype == bool
    for size, members in zip(sizes, data.members, strict=True):
        assert known[members].sum() == min(labels, size // 2)


# The scores


def test_each_task_is_scored_given_its_own_labels_alone() -> None:
    data, model = toy_data(), new_model()
    assert isinstance(model, TileNet)
    known = draw_labels(data, 5, seed=3)
    scores = scores_given(model, data, known)
    for members in data.members:
        have, rest = members[known[members]], members[~known[members]]
        expected = model.score_given(data.features[rest], data.features[have], data.latency[have])
        assert np.array_equal(scores[rest], expected)
    alone = data.take(np.flatnonzero(data.group == 2))
    scores = scores_given(model, alone, draw_labels(alone, 5))
    assert np.array_equal(scores, model.score(alone.features))  # one program: nothing to draw


# The judgement


def test_who_was_measured_is_not_judged() -> None:
    """Not by a score, which for labels is NaN, and not as the best program of the task either."""
    data = toy_data()
    known, scores = draw_labels(data, 5), -np.log(data.latency)
    judged = evaluate_unknown(data, known, np.where(known, np.nan, scores))
    assert judged == {"top1": 1, "top5": 1, "mean_top1": 1, "mean_top5": 1, "pairwise": 1}
    assert judged == evaluate_unknown(data, known, np.where(known, 1e9, scores))
