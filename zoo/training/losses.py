"""Losses over groups: every row of a batch holds programs of one task, and only they are compared.

All take scores and labels of shape (groups, programs), labels = best latency of the task / latency in (0, 1],
and a mask that is False at padding; all return one number, the mean over the groups that have something to
compare, and give no gradient to padding.
"""

import difflib
import math

import torch
from torch import Tensor
from torch.nn import functional

from ..models.base import Loss
from .errors import TrainingError


def lambda_rank(scores: Tensor, labels: Tensor, mask: Tensor, sigma: float = 1.0) -> Tensor:
    """Return LambdaRank as in TCL equation 6 (LambdaLoss, Wang et al. 2018).

    L = sum over pairs with y_i > y_j of |G_i - G_j| |1/D_i - 1/D_j| log2(1 + exp(-sigma (f_i - f_j)))

    with gain G = (2^y - 1) / maxDCG, discount D = log2(1 + rank), ranks from 1 by the *present* scores, and
    maxDCG the best sum of (2^y - 1) / D over orders of the group. The weights are constants to the gradient.
    The equation as printed has a minus sign in front and sums over all pairs: minimised like that it would
    push good programs down. The LambdaLoss paper has -log2 of a probability there, which is the positive
    logarithm above, over the pairs that have an order.
    """
    pairs = (labels[:, :, None] > labels[:, None, :]) & _pair_mask(mask)
    gain, discount = _gain_and_discount(scores.detach(), labels, mask)
    weight = (gain[:, :, None] - gain[:, None, :]).abs()
    weight = weight * (1 / discount[:, :, None] - 1 / discount[:, None, :]).abs()
    loss = functional.softplus(-sigma * _differences(scores)) / math.log(2)
    return _mean_over_groups((weight * loss).masked_fill(~pairs, 0).sum((1, 2)), pairs.any(2).any(1))


def pairwise_rank(scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """Return ATFormer's equations 4 and 5: the mean over pairs of log(1 + exp(-sign(y_i - y_j)(f_i - f_j))).

    Each unordered pair counts once; pairs of equal labels, whose term is the constant log 2, are left out.
    """
    pairs = (labels[:, :, None] > labels[:, None, :]) & _pair_mask(mask)
    return _weighted_pairs(scores, pairs.to(scores.dtype))


def log_ranknet(scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """Return `pairwise_rank` with each pair weighted by |log latency_i - log latency_j|.

    Confusing two programs costs as much as they are apart, and pairs within the noise hardly count.
    """
    log_label = labels.clamp_min(torch.finfo(labels.dtype).tiny).log()
    apart = log_label[:, :, None] - log_label[:, None, :]
    return _weighted_pairs(scores, (apart.clamp_min(0) * _pair_mask(mask)).to(scores.dtype))


def rmse(scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """Return the root of the mean squared difference of score and label over all programs of the batch."""
    return (scores - labels)[mask].square().mean().sqrt()


LOSSES: dict[str, Loss] = {
    "lambda_rank": lambda_rank,
    "pairwise_rank": pairwise_rank,
    "log_ranknet": log_ranknet,
    "rmse": rmse,
}


def get_loss(name: str) -> Loss:
    """Return the loss of this name.

    Raises:
        TrainingError: no such loss; the remedy has the nearest.
    """
    if name not in LOSSES:
        near = difflib.get_close_matches(name, LOSSES, n=2, cutoff=0.3) or list(LOSSES)
        raise TrainingError(f"no loss is called {name!r}", remedy=f"did you mean: {', '.join(near)}?", key="loss")
    return LOSSES[name]


def _differences(scores: Tensor) -> Tensor:
    """Return the score of i minus the score of j, (G, P, P)."""
    return scores[:, :, None] - scores[:, None, :]


def _pair_mask(mask: Tensor) -> Tensor:
    return mask[:, :, None] & mask[:, None, :]


def _gain_and_discount(scores: Tensor, labels: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return gain and discount of each program, (G, P); padding ranks last and gains nothing."""
    positions = torch.arange(1, scores.shape[1] + 1, device=scores.device, dtype=scores.dtype)
    discounts = torch.log2(1 + positions)
    order = scores.masked_fill(~mask, -math.inf).argsort(dim=1, descending=True, stable=True)
    discount = torch.empty_like(scores).scatter_(1, order, discounts.expand_as(scores))
    raw = (torch.exp2(labels) - 1).to(scores.dtype).masked_fill(~mask, 0)
    max_dcg = (raw.sort(dim=1, descending=True).values / discounts).sum(1, keepdim=True)
    return raw / max_dcg.clamp_min(torch.finfo(scores.dtype).tiny), discount


def _weighted_pairs(scores: Tensor, weight: Tensor) -> Tensor:
    """Return the weighted mean over pairs of log(1 + exp(f_j - f_i)) of each group, and of these the mean."""
    total = weight.sum((1, 2))
    loss = (weight * functional.softplus(-_differences(scores))).sum((1, 2))
    return _mean_over_groups(loss / total.clamp_min(torch.finfo(scores.dtype).tiny), total > 0)


def _mean_over_groups(values: Tensor, valid: Tensor) -> Tensor:
    """Return the mean; zero, with a gradient of zero, when no group has a pair."""
    return values.masked_fill(~valid, 0).sum() / valid.sum().clamp_min(1)
