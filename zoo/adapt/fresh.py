"""Networks that know a few labels and nothing else: trained from random weights, long enough to learn them."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from ..models import CostModel, create
from ..training.config import TrainConfig
from ..training.dataset import RankingDataset
from ..training.loop import train

# Steps of a training at the least: a few labels are one batch an epoch, and so many epochs are no training.
LEAST_STEPS = 300


def recipe_for(arch: str, data: RankingDataset) -> TrainConfig:
    """The architecture's recipe, in more epochs where there is little data.

    The last epoch is kept: to choose one takes labels that a small budget does not have.
    """
    found = replace(TrainConfig.find(arch), select="last", finetune={})
    least = math.ceil(LEAST_STEPS / steps_of(data, found.programs_per_group, found.groups_per_batch))
    return replace(found, epochs=max(found.epochs, least), evaluate_every=10**6)


def steps_of(data: RankingDataset, programs: int, groups: int) -> int:
    """Batches of an epoch of so many groups a batch, and programs a group."""
    cut = sum(math.ceil(len(members) / programs) for members in data.members if len(members) >= 2)
    return max(1, math.ceil(cut / groups))


def train_fresh(like: CostModel, data: RankingDataset, seed: int = 0) -> CostModel:
    """A network of the same architecture and size that learns these programs alone, from random weights.

    Args:
        like: says which network; its weights have no part in it.
        data: measured programs, (N, rows, width) of its features.
        seed: of the first weights and of the batches.

    Returns:
        The network, in evaluation mode.

    Raises:
        TrainConfigError: no recipe trains this architecture.
        DivergedError: see `zoo.training.train`.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = create(like.arch, **like.config.as_dict())
    model.prepare(torch.from_numpy(data.features))
    train(model, data, None, recipe_for(like.arch, data), seed)
    return model.eval()
