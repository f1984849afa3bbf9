"""Weights between models: on the line from one to another, and the Fisher-weighted mean of several."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence, Set

import torch
from torch import Tensor

from ..models import CostModel
from .errors import AdaptError

# Importance of every weight beside a mean of 1: one that no model needs is averaged plainly.
_LEAST_IMPORTANCE = 1e-3


def blend(start: CostModel, end: CostModel, strength: float) -> CostModel:
    """Return a model with weights start + strength * (end - start).

    Few labels point a model the right way more surely than they tell how far to go: a part of the way often ranks
    unseen programs better than all of it, as an average of weights along the way does.

    Args:
        start, end: of one architecture and size, the second reached by small steps from the first.
        strength: 0 gives the start, 1 the end.

    Returns:
        A new model; `end` itself where the strength is 1.

    Raises:
        ValueError: the models differ in their tensors.
    """
    if strength == 1:
        return end
    ours, theirs = start.state_dict(), end.state_dict()
    if {k: v.shape for k, v in ours.items()} != {k: v.shape for k, v in theirs.items()}:
        raise ValueError("only models of one architecture and size lie on one line")
    mixed = copy.deepcopy(end)
    mixed.load_state_dict(
        {k: v.lerp(theirs[k], strength) if v.is_floating_point() else theirs[k] for k, v in ours.items()}
    )
    return mixed.eval()


def fisher_average(
    models: Sequence[CostModel],
    fishers: Sequence[Mapping[str, Tensor]],
    weights: Sequence[float] | None = None,
) -> CostModel:
    """Average several models, each weight in proportion to how much each model depends on it.

    A knowledge base in one step, without training (Matena and Raffel 2022). It takes models that share a start:
    networks trained from different random weights have their units in another order, and their mean knows nothing.
    A weight that is frozen in some model is in no average: it has to be the same in all.

    Args:
        models: of one architecture and one config, with the same scales of columns.
        fishers: of each, `continual.fisher_diagonal` on its own device; only the proportions within a model count.
        weights: of each model, 0 or more; equal unless given.

    Returns:
        A new model.

    Raises:
        AdaptError: architectures, settings, scales or frozen weights differ.
        ValueError: the weights add up to nothing, or the numbers of arguments differ.
    """
    shares = [1.0] * len(models) if weights is None else list(weights)
    if not sum(shares) > 0 or min(shares) < 0:
        raise ValueError(f"weights {shares} do not average anything")
    averaged = set(fishers[0]).intersection(*fishers[1:])
    _check_alike(models, averaged)
    merged = copy.deepcopy(models[0])
    importances = [_importance(fisher) for fisher in fishers]
    named = [dict(model.named_parameters()) for model in models]
    with torch.no_grad():
        for name in averaged:
            parts = [(share * f[name], own[name]) for share, f, own in zip(shares, importances, named, strict=True)]
            total = torch.stack([part for part, _ in parts]).sum(dim=0)
            merged.get_parameter(name).copy_(torch.stack([part * own for part, own in parts]).sum(dim=0) / total)
    return merged


def _importance(fisher: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A Fisher diagonal whose mean is 1, so that a model of larger losses has no more influence."""
    count = sum(f.numel() for f in fisher.values())
    mean = sum(float(f.sum()) for f in fisher.values()) / max(count, 1)
    return {name: f / (mean or 1.0) + _LEAST_IMPORTANCE for name, f in fisher.items()}


def _check_alike(models: Sequence[CostModel], averaged: Set[str]) -> None:
    """Raise AdaptError unless all is the same beside the weights that are averaged."""
    first = models[0]
    for other in models[1:]:
        same = (first.arch, first.config) == (other.arch, other.config)
        theirs = other.state_dict()
        if not same or any(
            not torch.equal(ours, theirs[name]) for name, ours in first.state_dict().items() if name not in averaged
        ):
            raise AdaptError(
                f"a {first.arch} and a {other.arch} of other settings, scales or frozen weights cannot be averaged",
                remedy="average models that were fine-tuned from one checkpoint",
            )
