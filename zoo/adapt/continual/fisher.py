"""What weights are worth to the devices learnt so far: the Fisher diagonal (Kirkpatrick et al. 2017)."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence, Set
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from ...models import CostModel, Progressive
from ...training import RankingDataset, get_loss
from ...training.batches import epoch_batches
from ..errors import SourceMismatchError
from .config import ContinualConfig

# Worth that every weight has in an average, beside a mean worth of 1: one that no model needs is averaged plainly.
_LEAST_WORTH = 1e-3


def fisher_diagonal(
    model: CostModel, data: RankingDataset, config: ContinualConfig | None = None, seed: int = 0
) -> dict[str, Tensor]:
    """Mean over groups of the squared gradient of the rank loss, by the name of a weight that takes a gradient.

    The sample is a group of programs of one task, since that is the least that a rank loss is defined on. The loss
    is the model's own (`CostModel.training_loss`), so that what serves measured programs as context counts too.

    Args:
        model: in any mode; unchanged.
        data: programs of one device.
        config: loss, size of a group, and how many groups at most.
        seed: which groups.

    Returns:
        Tensors of the weights' shapes, 0 or more; all 0 when no task has two programs.
    """
    config = config or ContinualConfig()
    weights = {name: p for name, p in model.named_parameters() if p.requires_grad}
    found = {name: torch.zeros_like(p, requires_grad=False) for name, p in weights.items()}
    was_training, count = model.training, 0
    model.eval()
    groups = epoch_batches(data, 1, config.programs_per_group, np.random.default_rng([seed, 2]))
    for batch in islice(groups, config.fisher_groups):
        place = next(iter(weights.values())).device
        rows = model.describe(torch.from_numpy(data.features[batch.index]).to(place)).float()
        labels, mask = torch.from_numpy(batch.labels).to(place), torch.from_numpy(batch.mask).to(place)
        rng = np.random.default_rng([seed, 3, count])
        loss = model.training_loss(rows, labels, mask, get_loss(config.loss), rng)
        gradients = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
        for name, gradient in zip(weights, gradients, strict=True):
            if gradient is not None:
                found[name] += gradient.square()
        count += 1
    model.train(was_training)
    return {name: total / max(count, 1) for name, total in found.items()}


def remember(model: Progressive, data: RankingDataset, config: ContinualConfig | None = None, seed: int = 0) -> None:
    """Adds what the base's weights are worth to a device, on its programs, to what they are worth already.

    The device's description is kept with them.

    Afterwards the base answers, as after `distill`.
    """
    model.distilling()
    worth = fisher_diagonal(model.kb, data, config, seed)
    for name, total in model.fisher_diagonal().items():
        total.add_(worth[name])
    model.note_device(torch.from_numpy(data.features[:1]))


def fisher_average(
    models: Sequence[CostModel],
    fishers: Sequence[Mapping[str, Tensor]],
    weights: Sequence[float] | None = None,
) -> CostModel:
    """One model of several, each weight the mean over them by how much each model depends on it.

    A knowledge base in one step, without training (Matena and Raffel 2022). It takes models that share a start:
    networks trained from different random weights have their units in another order, and their mean knows nothing.

    A weight that is frozen in some model is in no average: it has to be the same in all.

    Args:
        models: of one architecture and one config, with the same scales of columns.
        fishers: of each, `fisher_diagonal` on its own device; only the proportions within a model count.
        weights: of each model, 0 or more; equal unless given (`choose_sources` gives some).

    Returns:
        A new model; where one weight is 0, that model has no say.

    Raises:
        SourceMismatchError: architectures, settings, scales or frozen weights differ.
        ValueError: the weights add up to nothing, or the numbers of arguments differ.
    """
    shares = [1.0] * len(models) if weights is None else list(weights)
    if not sum(shares) > 0 or min(shares) < 0:
        raise ValueError(f"weights {shares} do not average anything")
    averaged = set(fishers[0]).intersection(*fishers[1:])
    _check_alike(models, averaged)
    merged = copy.deepcopy(models[0])
    worths = [_worth(fisher) for fisher in fishers]
    named = [dict(model.named_parameters()) for model in models]
    with torch.no_grad():
        for name in averaged:
            parts = [(share * worth[name], own[name]) for share, worth, own in zip(shares, worths, named, strict=True)]
            total = torch.stack([part for part, _ in parts]).sum(dim=0)
            merged.get_parameter(name).copy_(torch.stack([part * own for part, own in parts]).sum(dim=0) / total)
    return merged


def _worth(fisher: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A Fisher diagonal whose mean is 1, so that a model of larger losses has no more say."""
    count = sum(f.numel() for f in fisher.values())
    mean = sum(float(f.sum()) for f in fisher.values()) / max(count, 1)
    return {name: f / (mean or 1.0) + _LEAST_WORTH for name, f in fisher.items()}


def _check_alike(models: Sequence[CostModel], averaged: Set[str]) -> None:
    """Beside the weights that are averaged, all has to be the same."""
    first = models[0]
    for other in models[1:]:
        same = (first.arch, first.config) == (other.arch, other.config)
        theirs = other.state_dict()
        if not same or any(
            not torch.equal(ours, theirs[name]) for name, ours in first.state_dict().items() if name not in averaged
        ):
            raise SourceMismatchError(
                f"a {first.arch} and a {other.arch} of other settings, scales or frozen weights cannot be averaged",
                remedy="average models that were fine-tuned from one checkpoint",
                expected=first.config.width,
                found=other.config.width,
            )
