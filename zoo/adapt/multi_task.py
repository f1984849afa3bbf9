"""Multi-task learning: a trunk that all devices share, and a head for each (papers: TLP, section 5.2).

The target's few labels and the sources' many programs train one network together. Only the target's head is kept.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from ..models import CostModel, Ensemble, ModelConfig, ProgressiveNetwork
from ..models.base import Loss
from ..models.registry import with_defaults
from ..training.config import TrainConfig
from ..training.dataset import RankingDataset
from ..training.loop import train
from .fine_tune import HEAD_NAMES, check_features, check_labels, in_head
from .method import Method, TrainedModel, TrainingSet, cached_model


class MultiHead(CostModel):
    """Any network of the zoo with a head for each device; as of `tlp`, this is `mtl-tlp`.

    The networks in it share the modules of the trunk, and have copies of the submodules of `HEAD_NAMES`.
    """

    def __init__(self, model: CostModel, heads: int) -> None:
        """Every head starts as a copy of the model's."""
        config = with_defaults(ModelConfig, heads=heads)
        super().__init__(config(model.config.width, model.config.hardware))
        self.networks = nn.ModuleList([model, *(_with_own_head(model) for _ in range(heads - 1))])

    def network(self, head: int) -> CostModel:
        """Return the network of one head; its trunk is that of all."""
        network = self.networks[head]
        assert isinstance(network, CostModel)
        return network

    def forward(self, x: Tensor) -> Tensor:
        return self.network(0)(x)

    def describe_heads(self, x: Tensor, heads: Tensor) -> Tensor:
        members = [torch.nonzero(heads == head).squeeze(1) for head in range(len(self.networks))]
        rows = [self.network(head).describe(x[own]) for head, own in enumerate(members) if len(own)]
        return torch.cat(rows)[torch.cat(members).argsort()]

    def training_loss(self, rows: Tensor, labels: Tensor, mask: Tensor, loss: Loss, rng: np.random.Generator) -> Tensor:
        return self.network(0).training_loss(rows, labels, mask, loss, rng)

    def bound_loss(self, rows: Tensor, bounds: Tensor) -> Tensor:
        return self.network(0).bound_loss(rows, bounds)


def multi_task(
    model: CostModel,
    target: RankingDataset,
    sources: Sequence[RankingDataset],
    config: TrainConfig,
    seed: int = 0,
    *,
    resume_dir: Path | None = None,
) -> CostModel:
    """Train a network on the target and its sources together, each with its own head; the last epoch is kept.

    Args:
        model: the network to start from, which stays as it is.
        target: the few measured programs of the target, learnt by the first head; sources: of each other device.
        seed, resume_dir: see `zoo.training.train`.

    Returns:
        A model of the architecture alone, with trunk and the target's head.

    Raises:
        AdaptError: some programs are of other features than the model reads.
        LabelError: no task of the target has two programs of different latency.
    """
    check_features(model, target, *sources)
    check_labels(target)
    shared = MultiHead(copy.deepcopy(model), 1 + len(sources))
    parts = [replace(part, task_heads=np.full(len(part.task_ids), i)) for i, part in enumerate([target, *sources])]
    train(shared, RankingDataset.concat(parts), None, config, seed, resume_dir)
    return copy.deepcopy(shared.network(0)).eval()


class MultiTask(Method):
    """Trains on from the base's weights, on the labels and all programs of the sources (TLP, section 5.2)."""

    name: ClassVar[str] = "multi-task"
    learns_corpora: ClassVar[bool] = True

    def missing(self, base: CostModel, sources: int) -> str | None:
        """Return None for programs of other devices, and one network to share."""
        if not sources:
            return "it learns beside programs of other devices: name folders of corpora with --sources"
        if isinstance(base, ProgressiveNetwork):
            return "a knowledge base learns devices one after another, not at once"
        if isinstance(base, Ensemble):
            return "the members of an ensemble share no trunk"
        return None

    def learn(self, start: CostModel, training_set: TrainingSet) -> TrainedModel:
        """Learn by `multi_task` and the architecture's own recipe. A run that is killed loses one epoch at most."""
        config = replace(TrainConfig.find(start.arch), save_every=1)
        sources = [source.data for source in training_set.sources]

        def train_all(state: Path | None) -> TrainedModel:
            model = multi_task(start, training_set.data, sources, config, seed=training_set.seed, resume_dir=state)
            programs = [len(part) for part in (training_set.data, *sources)]
            names = [source.name for source in training_set.sources]
            return TrainedModel(model, {"programs": programs, "sources": names})

        return cached_model(training_set.folder, training_set.key(self.name, start), train_all)


def _with_own_head(model: CostModel) -> CostModel:
    """Copy a model but its trunk: only modules that lie in a head, or hold one, are copied."""
    own = [name for name, _ in model.named_modules() if name.rpartition(".")[2] in HEAD_NAMES]
    tensors = [*model.named_parameters(), *model.named_buffers()]
    shared: list[object] = [tensor for name, tensor in tensors if not in_head(name)]
    shared += [
        module
        for name, module in model.named_modules()
        if name and not in_head(name) and not any(head.startswith(f"{name}.") for head in own)
    ]
    return copy.deepcopy(model, {id(part): part for part in shared})
