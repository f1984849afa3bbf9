"""What a fine-tuning may move: every layer, at a rate by its depth; the head alone; or factors of low rank.

Factors belong to the matrices of linear layers. All other weights then stay as they are: biases, convolutions, and the
alpha of a knowledge base's laterals.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ..models import Committee, CostModel
from .errors import NotTrainableError

if TYPE_CHECKING:
    from .fine_tune import FineTuneConfig

# Names of the submodules that turn the encoding into a score; the rest is the encoder.
HEAD_NAMES = frozenset({"decoder", "head"})
UPDATES = ("all", "head", "low-rank")


def in_head(name: str) -> bool:
    """Whether a parameter of this dotted name belongs to what turns the encoding into a score."""
    return not HEAD_NAMES.isdisjoint(name.split("."))


def layer_depths(model: CostModel, features: np.ndarray) -> dict[str, int]:
    """How many layers lie between each trainable parameter and the score, by the order in which a program meets them.

    A layer is a module with a trainable matrix of its own. Vectors (a normalisation's, say) and modules that are
    never called themselves count with the layer before them; what the model itself holds, and heads that do not
    answer, with the last one. A layer that is met several times counts where it is met first.

    Args:
        model: any network.
        features: (n, rows, width), n >= 1; one program is enough.

    Returns:
        Name of the parameter -> 0 for the last layer, 1 for the one before it, and so on.
    """
    if isinstance(model, Committee):  # its members stand side by side
        apart = enumerate(layer_depths(member, features) for member in model.each)
        return {f"members.{place}.{name}": depth for place, depths in apart for name, depth in depths.items()}
    met = _modules_met(model, features[:1])
    layers, place = 0, {}
    for name in met:
        own = model.get_submodule(name).parameters(recurse=False)
        layers += any(p.requires_grad and p.dim() > 1 for p in own)
        place[name] = layers
    depths = {}
    for name, parameter in model.named_parameters():
        owner = name.rpartition(".")[0]
        while owner and owner not in place:
            owner = owner.rpartition(".")[0]
        if parameter.requires_grad:
            depths[name] = layers - place[owner] if owner else 0
    return depths


def _modules_met(model: CostModel, features: np.ndarray) -> list[str]:
    """Names of the submodules in the order in which a forward pass first calls them."""
    met: dict[str, None] = {}
    hooks = [
        module.register_forward_pre_hook(lambda *_, name=name: met.setdefault(name))
        for name, module in model.named_modules()
        if name
    ]
    try:
        model.score(features)
    finally:
        for hook in hooks:
            hook.remove()
    return list(met)


class LowRank(nn.Module):
    """A matrix plus `up @ down`, which is zero at first: (out, in) from factors (out, rank) and (rank, in)."""

    def __init__(self, weight: Tensor, rank: int) -> None:
        super().__init__()
        out, width = weight.shape
        rank = min(rank, out, width)
        self.up = nn.Parameter(weight.new_zeros(out, rank))
        self.down = nn.Parameter(torch.randn(rank, width).to(weight) / width**0.5)

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.up @ self.down

    def moved(self) -> Tensor:
        """Squared distance of the matrix from where it was, without making the matrix."""
        return ((self.up.T @ self.up) * (self.down @ self.down.T)).sum()


class Update:
    """A copy of a model that may be moved in one of the ways of `UPDATES`; what it does not train is frozen.

    Attributes:
        model: the copy, to be trained in place.
        groups: for the optimizer, the trained parameters with their learning rates.
    """

    def __init__(self, model: CostModel, kind: str, config: FineTuneConfig, features: np.ndarray) -> None:
        """`features` are some programs (n, rows, width) that tell the order of the layers.

        Raises:
            NotTrainableError: nothing of the model may move this way.
        """
        self._given = model
        self.model = copy.deepcopy(model)
        depths = layer_depths(self.model, features)
        if kind == "low-rank":
            self._factors = _factor(self.model, config.rank)
            trained = {f"{name}.{part}": p for name, f in self._factors.items() for part, p in f.named_parameters()}
            depths = {name: depths[name.rpartition(".")[0]] for name in trained}
        else:
            self._factors = {}
            trained = {n: p for n, p in self.model.named_parameters() if n in depths and (kind == "all" or in_head(n))}
        if not trained:
            raise NotTrainableError(
                f"nothing of this {model.arch} is trained by an update of kind {kind!r}",
                remedy="set requires_grad on what may move, or use the update 'all'",
                arch=model.arch,
            )
        for parameter in self.model.parameters():
            parameter.requires_grad_(False)
        for parameter in trained.values():
            parameter.requires_grad_(True)
        self._start = {} if self._factors else {n: p.detach().clone() for n, p in trained.items()}
        self._trained = trained
        self.groups = _groups(trained, depths, config, low_rank=bool(self._factors))

    def distance(self) -> Tensor:
        """Squared distance of the weights from the start point."""
        moved = [factor.moved() for factor in self._factors.values()]
        moved += [((self._trained[name] - start) ** 2).sum() for name, start in self._start.items()]
        return torch.stack(moved).sum()

    def parameters(self) -> list[nn.Parameter]:
        """Those that are trained."""
        return list(self._trained.values())

    def plain(self) -> CostModel:
        """The moved weights in a copy of the model that was given, in evaluation mode; ends the training."""
        for name in self._factors:
            linear = self.model.get_submodule(name.rpartition(".")[0])
            parametrize.remove_parametrizations(linear, "weight", leave_parametrized=True)
        self._factors = {}
        result = copy.deepcopy(self._given)
        result.load_state_dict(self.model.state_dict())
        return result.eval()


def _factor(model: CostModel, rank: int) -> dict[str, LowRank]:
    """Gives every trainable matrix of an `nn.Linear` factors of low rank, by the name of the matrix."""
    factors: dict[str, LowRank] = {}
    linears = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear) and m.weight.requires_grad]
    for name, linear in linears:
        factors[f"{name}.weight"] = LowRank(linear.weight, rank)
        parametrize.register_parametrization(linear, "weight", factors[f"{name}.weight"])
    return factors


def _groups(
    trained: Mapping[str, nn.Parameter], depths: Mapping[str, int], config: FineTuneConfig, *, low_rank: bool
) -> list[dict[str, Any]]:
    """Parameters of one rate together: the decay counts from the output, in the encoder from its own last layer."""
    nearest = min((depths[name] for name in trained if not in_head(name)), default=0)
    groups: dict[float, list[nn.Parameter]] = {}
    for name, parameter in trained.items():
        head = in_head(name)
        rate = config.head_learning_rate if head else config.learning_rate
        if low_rank:
            rate = config.low_rank_learning_rate
        rate *= config.layer_decay ** (depths[name] - (0 if head or low_rank else nearest))
        groups.setdefault(rate, []).append(parameter)
    return [{"params": parameters, "lr": rate} for rate, parameters in groups.items()]
