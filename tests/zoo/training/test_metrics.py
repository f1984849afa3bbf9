"""Metrics and losses against hand-computed values, loops that follow the equations, and all orders of tied programs."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tchub.zoo.training import evaluate_random, get_loss, pairwise_accuracy
from tchub.zoo.training.losses import LOSSES, lambda_rank, log_ranknet, pairwise_rank
from tchub.zoo.training.metrics import count_pairs, mean_top_k, r_squared, tally_pairs, top_k

# Two tasks: of the first the model picks the 2 s program (best 1 s), of the second the best (4 s).
SCORES = np.array([0.1, 0.9, 0.5, 3.0, 2.0])
LATENCY = np.array([1.0, 2.0, 8.0, 4.0, 5.0])
GROUP = np.array([0, 0, 0, 1, 1])
WEIGHTS = np.array([3.0, 1.0])


def test_top_k_by_hand():
    """TLP 6.1: (1 x 3 + 4 x 1) / (2 x 3 + 4 x 1); with k = 3 the best is among them."""
    assert top_k(SCORES, LATENCY, GROUP, WEIGHTS, 1) == pytest.approx(7 / 10)
    assert top_k(SCORES, LATENCY, GROUP, WEIGHTS, 3) == 1.0
    assert mean_top_k(SCORES, LATENCY, GROUP, 1) == pytest.approx((1 / 2 + 1) / 2)


def test_pairwise_accuracy_by_hand():
    """First task: of 3 pairs only (2 s, 8 s) is ordered rightly; second: its one pair is. A tie is half right."""
    assert pairwise_accuracy(SCORES, LATENCY, GROUP) == pytest.approx((1 / 3 + 1) / 2)
    assert pairwise_accuracy(np.zeros(5), LATENCY, GROUP) == 0.5


def test_pairs_within_five_percent_do_not_count():
    scores, latency, group = np.array([0.0, 1.0, 2.0]), np.array([1.0, 1.04, 2.0]), np.zeros(3, int)
    assert pairwise_accuracy(scores, latency, group) == 0.0
    assert np.isnan(pairwise_accuracy(scores[:2], latency[:2], group[:2]))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6), st.booleans()), max_size=12))
def test_pairs_are_counted_where_one_of_both_is_asked_for(programs: list[tuple[int, int, bool]]):
    pairs = [(a, b) for a, b in itertools.permutations(programs, 2) if a[1] < b[1] and (a[2] or b[2])]
    scores, latency, asked = (
        np.array([program[i] for program in programs], dtype) for i, dtype in ((0, float), (1, float), (2, bool))
    )
    right = sum((np.sign(a[0] - b[0]) + 1) / 2 for a, b in pairs)
    assert tally_pairs(scores, latency, asked) == (right, len(pairs))
    assert count_pairs(latency, asked) == len(pairs)


def test_r_squared_by_hand():
    predicted, actual = np.array([1.0, 2.0, 4.0]), np.array([1.0, 3.0, 5.0])
    assert r_squared(predicted, actual) == pytest.approx(1 - 2 / 8)
    group, apart = np.array([0, 0, 0, 1, 1, 1]), np.array([5.0, 5, 5, -7, -7, -7])
    twice = np.tile(predicted, 2), np.tile(actual, 2)
    errors = np.square(np.array([0, 1, 1]) - 2 / 3).sum()
    assert r_squared(twice[0] + apart, twice[1], group) == pytest.approx(1 - errors / 8), "the level of a task is free"
    assert r_squared(actual.mean() + 0 * actual, actual) == 0
    assert np.isnan(r_squared(predicted, np.ones(3)))
    assert np.isnan(r_squared(np.zeros(0), np.zeros(0), np.zeros(0, np.int64)))


def test_large_tasks_are_compared_in_blocks():
    rng = np.random.default_rng(0)
    latency = np.exp(rng.standard_normal(1300))
    assert pairwise_accuracy(-latency, latency, np.zeros(1300, int)) == 1.0
    assert pairwise_accuracy(latency, latency, np.zeros(1300, int)) == 0.0


def test_random_choice_is_the_closed_form():
    """Top-1 of a random pick is the mean latency; top-2 of three is an order statistic."""
    latency, group = np.array([1.0, 2.0, 6.0]), np.zeros(3, int)
    result = evaluate_random(latency, group, np.ones(1))
    assert result["top1"] == pytest.approx(1 / 3)
    assert result["mean_top1"] == pytest.approx((1 + 1 / 2 + 1 / 6) / 3)
    assert result["pairwise"] == 0.5
    assert result["top5"] == 1.0
    assert top_k(np.zeros(3), latency, group, np.ones(1), 2) == pytest.approx(1 / ((1 + 1 + 2) / 3))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), min_size=1, max_size=6), st.integers(1, 4))
def test_ties_give_the_average_over_their_orders(programs, k):
    scores = np.array([float(s) for s, _ in programs])
    latency = np.array([float(t) for _, t in programs])
    orders = itertools.permutations(range(len(programs)))
    orders = [order for order in orders if (np.diff(scores[list(order)]) <= 0).all()]
    best = np.array([min(latency[i] for i in order[:k]) for order in orders])
    group = np.zeros(len(programs), int)
    assert top_k(scores, latency, group, np.ones(1), k) == pytest.approx(latency.min() / best.mean())
    assert mean_top_k(scores, latency, group, k) == pytest.approx((latency.min() / best).mean())


def test_a_nan_score_ranks_last():
    assert top_k(np.array([np.nan, 1.0]), np.array([1.0, 2.0]), np.zeros(2, int), np.ones(1), 1) == 0.5


def test_a_task_without_programs_is_left_out():
    assert top_k(SCORES, LATENCY, GROUP + 1, np.array([9.0, 3.0, 1.0]), 1) == pytest.approx(7 / 10)
    assert np.isnan(top_k(np.zeros(0), np.zeros(0), np.zeros(0, int), np.ones(1), 1))


def row(*values):
    return torch.tensor([values], dtype=torch.float64)


def random_batch(seed=0, groups=3, programs=6):
    g = torch.Generator().manual_seed(seed)
    scores = torch.randn(groups, programs, generator=g, dtype=torch.float64)
    labels = torch.rand(groups, programs, generator=g, dtype=torch.float64)
    mask = torch.arange(programs) < torch.tensor([[6], [4], [2]])[:groups]
    return scores, labels * mask, mask


def lambda_rank_by_loops(scores, labels, sigma=1.0):
    """TCL equation 6 for one group of plain numbers, with the sign that LambdaLoss has."""
    n = len(scores)
    order = sorted(range(n), key=lambda i: -scores[i])
    d = {program: math.log2(1 + place) for place, program in enumerate(order, start=1)}
    ideal = sorted((2**y - 1 for y in labels), reverse=True)
    max_dcg = sum(g / math.log2(1 + place) for place, g in enumerate(ideal, start=1))
    gain = [(2**y - 1) / max_dcg for y in labels]
    return sum(
        abs(gain[i] - gain[j]) * abs(1 / d[i] - 1 / d[j]) * math.log2(1 + math.exp(-sigma * (scores[i] - scores[j])))
        for i, j in itertools.product(range(n), repeat=2)
        if labels[i] > labels[j]
    )


@pytest.mark.parametrize("sigma", [1.0, 2.5])
def test_lambda_rank_equals_the_equation(sigma):
    scores, labels, mask = random_batch()
    wanted = [
        lambda_rank_by_loops(s[m].tolist(), y[m].tolist(), sigma) for s, y, m in zip(scores, labels, mask, strict=True)
    ]
    loss = lambda_rank(scores, labels, mask, sigma)
    assert loss.item() == pytest.approx(sum(wanted) / 3, rel=1e-12)


def test_pairwise_rank_equals_the_equation():
    """Mean over the pairs of each task, then over tasks; each unordered pair once."""
    scores, labels, mask = random_batch()
    wanted = []
    for s, y, m in zip(scores, labels, mask, strict=True):
        pairs = itertools.combinations(zip(s[m].tolist(), y[m].tolist(), strict=True), 2)
        terms = [math.log1p(math.exp(-math.copysign(1, a[1] - b[1]) * (a[0] - b[0]))) for a, b in pairs]
        wanted.append(sum(terms) / len(terms))
    assert pairwise_rank(scores, labels, mask).item() == pytest.approx(sum(wanted) / 3, rel=1e-12)


def test_log_ranknet_weighs_by_the_difference_of_log_latency():
    """Labels 1, 1/2, 1/8: pairs are 1, 2 and 3 doublings apart."""
    scores = row(0.3, -0.2, 0.9)
    pairs = [(1, 0.3 + 0.2), (3, 0.3 - 0.9), (2, -0.2 - 0.9)]
    wanted = sum(w * math.log1p(math.exp(-d)) for w, d in pairs) / 6
    mask = torch.ones(1, 3, dtype=torch.bool)
    assert log_ranknet(scores, row(1.0, 0.5, 0.125), mask).item() == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("name", LOSSES)
def test_padding_changes_nothing_and_gets_no_gradient(name):
    scores, labels, mask = random_batch()
    wild = torch.where(mask, scores, 50.0).requires_grad_()
    loss = LOSSES[name](wild, labels, mask)
    loss.backward()
    assert loss.item() == pytest.approx(LOSSES[name](scores, labels, mask).item(), rel=1e-12)
    assert wild.grad is not None
    assert wild.grad[~mask].abs().max() == 0


@pytest.mark.parametrize("loss", [lambda_rank, pairwise_rank, log_ranknet])
def test_equal_labels_are_no_pair(loss):
    scores = row(0.0, 1.0).requires_grad_()
    value = loss(scores, row(0.5, 0.5), torch.ones(1, 2, dtype=torch.bool))
    value.backward()
    assert value.item() == 0
    assert scores.grad is not None
    assert scores.grad.abs().max() == 0


def test_rmse_by_hand():
    loss = get_loss("rmse")(row(0.0, 1.0, 99.0), row(1.0, 0.5, 0.0), torch.tensor([[True, True, False]]))
    assert loss.item() == pytest.approx(math.sqrt((1 + 0.25) / 2))
