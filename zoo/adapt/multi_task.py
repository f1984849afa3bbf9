"""Multi-task learning: a trunk that all devices share, and a head for each (papers: TLP, section 5.2).

The target's few labels and the sources' many programs train one network together. Only the target's head is kept.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..models import CostModel, ModelConfig, create, get_architecture
from ..training.config import TrainConfig
from ..training.dataset import RankingDataset
from ..training.inputs import resolve_schema
from ..training.loop import TrainResult, train
from .errors import SourceMismatchError
from .fine_tune import check_features, check_labels, check_trainable
from .footprint import Footprint, footprint
from .updates import HEAD_NAMES, in_head


@dataclass(frozen=True)
class MultiTaskResult:
    """A model of the target that learnt beside the sources' heads.

    Attributes:
        model: of the architecture alone, with the shared trunk and the target's head; in evaluation mode.
        training: the run's history and chosen epoch.
        footprint: of trunk and all heads, which is what was trained.
        programs: of the target and then of each source.
    """

    model: CostModel
    training: TrainResult
    footprint: Footprint
    programs: tuple[int, ...]


@dataclass(frozen=True)
class MultiHeadConfig(ModelConfig):
    """What tells one `MultiHead` from another: its network's architecture and settings, and the number of heads."""

    arch: str = ""
    settings: tuple[tuple[str, Any], ...] = ()
    heads: int = 1


class MultiHead(CostModel):
    """Any network of the zoo with a head for each device; as of `tlp`, this is `mtl-tlp`.

    The networks in it are one trunk, the very same modules, and copies of the submodules of `HEAD_NAMES`. Each
    program passes the trunk once, on its way to its own head. A network that has several heads of its own keeps
    those that do not answer in every copy, where nothing trains them.
    """

    config: MultiHeadConfig

    def __init__(self, model: CostModel, heads: int, fresh: bool = False) -> None:
        """`fresh` heads are drawn at random, each for itself; others start as copies of the model's."""
        config = model.config
        settings = tuple(sorted(config.as_dict().items()))
        super().__init__(MultiHeadConfig(config.width, config.hardware, model.arch, settings, heads))
        self.networks = nn.ModuleList([model, *(_with_own_head(model) for _ in range(heads - 1))])
        for network in self.networks[1:] if fresh else ():
            _draw_head(network)

    def network(self, head: int) -> CostModel:
        """The network of one head; its trunk is that of all."""
        network = self.networks[head]
        assert isinstance(network, CostModel)
        return network

    def forward(self, x: Tensor) -> Tensor:
        return self.network(0)(x)

    def forward_heads(self, x: Tensor) -> Tensor:
        return torch.stack([network(x) for network in self.networks], dim=1)

    def describe(self, x: Tensor) -> Tensor:
        return self.network(0).describe(x)

    def describe_heads(self, x: Tensor, heads: Tensor) -> Tensor:
        places = [torch.nonzero(heads == head).squeeze(1) for head in range(len(self.networks))]
        rows = [self.network(head).describe(x[at]) for head, at in enumerate(places) if len(at)]
        return torch.cat(rows)[torch.cat(places).argsort()]

    def training_loss(
        self,
        rows: Tensor,
        labels: Tensor,
        mask: Tensor,
        loss: Callable[[Tensor, Tensor, Tensor], Tensor],
        rng: np.random.Generator,
    ) -> Tensor:
        return self.network(0).training_loss(rows, labels, mask, loss, rng)

    def prepare(self, features: Tensor) -> None:
        self.network(0).prepare(features)


def multi_task(
    arch_or_model: str | CostModel,
    target: RankingDataset,
    sources: Sequence[RankingDataset],
    config: TrainConfig | None = None,
    seed: int = 0,
    val: RankingDataset | None = None,
    *,
    resume_dir: Path | None = None,
    on_epoch: Callable[[dict[str, float]], None] | None = None,
) -> MultiTaskResult:
    """Trains a network on the target and its sources together, each with its own head.

    Args:
        arch_or_model: an architecture, to start at random, or a network to start from, which stays as it is.
        target: the few measured programs of the target.
        sources: programs of each other device.
        config: the recipe; the architecture's own unless given.
        seed: of the random start and of the training.
        val: what chooses the epoch, by the target's head; without it the last one is kept.
        resume_dir, on_epoch: see `zoo.training.train`.

    Raises:
        NotTrainableError: trees have no trunk to share.
        LabelError: no task of the target has two programs of different latency.
        SourceMismatchError: a source's programs, or the target's, are of other features.
        DivergedError, ResumeError, TrainConfigError, UnknownArchitectureError: see `zoo.training.train`.
    """
    _check_widths(target, [*sources, *([val] if val is not None else [])])
    _ = check_labels(target)
    fresh = isinstance(arch_or_model, str)
    config = config or TrainConfig.find(arch_or_model if isinstance(arch_or_model, str) else arch_or_model.arch)
    parts = [replace(part, task_heads=np.full(len(part.task_ids), i)) for i, part in enumerate([target, *sources])]
    data = RankingDataset.concat(parts)
    if isinstance(arch_or_model, str):
        shared = _start(arch_or_model, data, config, len(parts), seed)
    else:
        check_trainable(arch_or_model)
        check_features(arch_or_model, target)
        shared = MultiHead(copy.deepcopy(arch_or_model), len(parts))
    if fresh:
        shared.prepare(torch.from_numpy(data.features))
    training = train(shared, data, val, config, seed, resume_dir, on_epoch)
    model = copy.deepcopy(shared.network(0)).eval()
    counted = footprint(model, target.features[:64], len(parts))
    return MultiTaskResult(model, training, counted, tuple(len(part) for part in parts))


def _start(arch: str, data: RankingDataset, config: TrainConfig, heads: int, seed: int) -> MultiHead:
    """A network of random weights for these programs; the recipe's schema tells if their last row is the device."""
    known = get_architecture(arch)
    kinds = [resolve_schema(config.feature_schema, kind) for kind in ("cpu", "gpu")]
    hardware = next((s.hardware for s in kinds if s.width == data.features.shape[2]), known.config().hardware)
    settings = {"width": data.features.shape[2], "hardware": hardware} | config.model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = create(arch, **settings)
        check_trainable(model)
        return MultiHead(model, heads, fresh=True)


def _check_widths(target: RankingDataset, others: Sequence[RankingDataset]) -> None:
    expected = target.features.shape[2]
    for other in others:
        if (found := other.features.shape[2]) != expected:
            raise SourceMismatchError(
                f"programs of {found} columns a row cannot share a trunk with the target's, of {expected}",
                remedy="take sources of the target's kind of device (CPU or GPU), read by one feature schema",
                expected=expected,
                found=found,
            )


def _with_own_head(model: CostModel) -> CostModel:
    """A copy whose trunk is the model's own: only modules that lie in a head, or hold one, are copied."""
    own = [name for name, _ in model.named_modules() if name.rpartition(".")[2] in HEAD_NAMES]
    tensors = [*model.named_parameters(), *model.named_buffers()]
    shared: list[object] = [tensor for name, tensor in tensors if not in_head(name)]
    shared += [
        module
        for name, module in model.named_modules()
        if name and not in_head(name) and not any(head.startswith(f"{name}.") for head in own)
    ]
    return copy.deepcopy(model, {id(part): part for part in shared})


def _draw_head(network: nn.Module) -> None:
    """Random weights for the head, as its layers draw them."""
    for name, module in network.named_modules():
        if in_head(name) and hasattr(module, "reset_parameters"):
            module.reset_parameters()  # pyright: ignore[reportCallIssue]
