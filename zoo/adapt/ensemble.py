"""`ensemble`: the fine-tuned base, and beside it a network that knows the labels alone; both answer."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch

from ..models import ContextModel, CostModel, Ensemble, create, get_architecture
from ..training.config import TrainConfig
from ..training.dataset import RankingDataset
from ..training.loop import train
from .continual.config import steps_per_epoch
from .method import FewShot, Method, TrainedModel, TrainingSet, cached_model

# Labels of a task from which on the network from random weights counts `MOST` of what the base counts.
ENOUGH, MOST = 16, 0.5
# Steps of a training from random weights at the least: a few labels are one batch an epoch.
LEAST_STEPS = 300
# Scores that differ by less than this part of them are one score in float32.
_NOTHING = 1e-6


class EnsembleMethod(Method):
    """Adds a network of the labels alone: it corrects a base that misleads, and errs in other places than the base.

    The base is fine-tuned as `few-shot` does it, and a second network of its kind learns the labels from random
    weights. The more labels of a task there are, the more the second one counts (`fresh_share`).
    """

    name: ClassVar[str] = "ensemble"

    def missing(self, base: CostModel, sources: int) -> str | None:
        """Return None for a plain network, of which there can be a second one."""
        known = get_architecture(base.arch)
        return f"it combines plain networks, and this one is of the kind {known.kind}" if known.base else None

    def learn(self, start: CostModel, training_set: TrainingSet) -> TrainedModel:
        """Return an `Ensemble` of the fine-tuned start and of a network from random weights."""
        data, seed = training_set.data, training_set.seed
        tuned, key = FewShot().learn(start, training_set), training_set.key(self.name, start)  # `auto` has it already
        fresh = cached_model(training_set.folder, key, lambda _: TrainedModel(train_fresh(start, data, seed), {}))
        second, share = fresh.model, fresh_share(data)
        shares = ((1 - share) * score_unit(tuned.model, data), share * score_unit(second, data))
        facts = tuned.facts | {"fresh_share": round(share, 4)}
        return TrainedModel(Ensemble.around([tuned.model, second], shares), facts)


def train_fresh(like: CostModel, data: RankingDataset, seed: int = 0) -> CostModel:
    """Train a network of the architecture and size of `like` on these programs alone, from random weights."""
    model = create(like.arch, seed=seed, **like.config.as_dict())
    model.prepare(torch.from_numpy(data.features))
    train(model, data, None, recipe_for(like.arch, data), seed)
    return model.eval()


def recipe_for(arch: str, data: RankingDataset) -> TrainConfig:
    """Return the architecture's recipe, with more epochs where there is little data.

    The last epoch is kept: to choose one takes labels that a small budget does not have.
    """
    recipe = replace(TrainConfig.find(arch), select="last", finetune={})
    least = math.ceil(LEAST_STEPS / steps_per_epoch(data, recipe.programs_per_group, recipe.groups_per_batch))
    return replace(recipe, epochs=max(recipe.epochs, least))


def fresh_share(data: RankingDataset) -> float:
    """Return the share of the network from random weights, 0 to 1, by the mean number of labels of a task."""
    sizes = [len(members) for members in data.members if len(members)]
    weight = MOST * min(1.0, float(np.mean(sizes)) / ENOUGH)
    return weight / (1 + weight)


def score_unit(model: CostModel, data: RankingDataset) -> float:
    """Return the factor that scales a model's scores to the spread of -log(latency) within a task; 0 without a spread.

    1 for a model that takes context: its scores are estimates of it. The losses of others know orders and no units, so
    that one member would outvote another by being louder.
    """
    if isinstance(model, ContextModel):
        return 1.0
    scores, speed = model.score(data.features), -np.log(data.latency)
    spread = _spread(scores, data)
    return _spread(speed, data) / spread if spread > _NOTHING * np.abs(scores).max() else 0.0


def _spread(values: np.ndarray, data: RankingDataset) -> float:
    """Standard deviation within tasks."""
    apart = [values[members] - values[members].mean() for members in data.members if len(members)]
    return float(np.concatenate(apart).std())
