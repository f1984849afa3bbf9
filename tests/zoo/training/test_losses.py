"""Losses against hand-computed values, against loops that follow the equations, and their gradients."""

import itertools
import math

import pytest
import torch
from tchub.zoo.training import get_loss
from tchub.zoo.training.losses import LOSSES, lambda_rank, log_ranknet, pairwise_rank

ALL = torch.ones(1, 2, dtype=torch.bool)
PAIR_LOSSES = [lambda_rank, pairwise_rank, log_ranknet]


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
def test_gradient_equals_finite_differences(name):
    scores, labels, mask = random_batch()
    assert torch.autograd.gradcheck(lambda s: LOSSES[name](s, labels, mask), scores.requires_grad_())


@pytest.mark.parametrize("name", LOSSES)
def test_padding_changes_nothing_and_gets_no_gradient(name):
    scores, labels, mask = random_batch()
    wild = torch.where(mask, scores, 50.0).requires_grad_()
    loss = LOSSES[name](wild, labels, mask)
    loss.backward()
    assert loss.item() == pytest.approx(LOSSES[name](scores, labels, mask).item(), rel=1e-12)
    assert wild.grad is not None
    assert wild.grad[~mask].abs().max() == 0


@pytest.mark.parametrize("loss", PAIR_LOSSES)
def test_equal_labels_are_no_pair(loss):
    scores = row(0.0, 1.0).requires_grad_()
    value = loss(scores, row(0.5, 0.5), ALL)
    value.backward()
    assert value.item() == 0
    assert scores.grad is not None
    assert scores.grad.abs().max() == 0


def test_rmse_by_hand():
    loss = get_loss("rmse")(row(0.0, 1.0, 99.0), row(1.0, 0.5, 0.0), torch.tensor([[True, True, False]]))
    assert loss.item() == pytest.approx(math.sqrt((1 + 0.25) / 2))
