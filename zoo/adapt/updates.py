"""Kinds of update of a fine-tuning: all layers, the head alone, or factors of low rank.

Factors belong to the matrices of linear layers. All other weights then stay as they are: biases, convolutions, and the
alpha of a knowledge base's laterals.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ..models import CostModel
from .errors import AdaptError
from .layers import in_head

UPDATES = ("all", "head", "low-rank")


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

    def distance(self) -> Tensor:
        """Return the squared distance of the matrix from its start, without computing the matrix."""
        return ((self.up.T @ self.up) * (self.down @ self.down.T)).sum()


class Update:
    """A copy of a model that is trained by one of `UPDATES`; all other parameters are frozen.

    Attributes:
        model: the copy, to be trained in place.
        groups: for the optimizer, the trained parameters with their learning rates.
    """

    def __init__(
        self, model: CostModel, kind: str, rates: tuple[float, float], rank: int, low_rank_rate: float
    ) -> None:
        """`rates` are those of the encoder and of the head; `rank` and `low_rank_rate` are of the factors.

        Raises:
            AdaptError: nothing of the model may move this way.
        """
        self._original = model
        self.model = copy.deepcopy(model)
        names = [name for name, p in self.model.named_parameters() if p.requires_grad]
        self._factors = _add_factors(self.model, rank) if kind == "low-rank" else {}
        if kind == "low-rank":
            trained = {f"{name}.{part}": p for name, f in self._factors.items() for part, p in f.named_parameters()}
        else:
            trained = {n: self.model.get_parameter(n) for n in names if kind == "all" or in_head(n)}
        if not trained:
            raise AdaptError(
                f"nothing of this {model.arch} is trained by an update of kind {kind!r}",
                remedy="set requires_grad on what may move, or use the update 'all'",
                arch=model.arch,
            )
        self.model.requires_grad_(False)
        for parameter in trained.values():
            parameter.requires_grad_(True)
        self._start = {} if self._factors else {n: p.detach().clone() for n, p in trained.items()}
        self._trained = trained
        groups: dict[float, list[nn.Parameter]] = {}
        for name, parameter in trained.items():
            groups.setdefault(low_rank_rate if self._factors else rates[in_head(name)], []).append(parameter)
        self.groups: list[dict[str, Any]] = [{"params": own, "lr": rate} for rate, own in groups.items()]

    def distance(self) -> Tensor:
        """Return the squared distance of the weights from the start point."""
        moved = [factor.distance() for factor in self._factors.values()]
        moved += [((self._trained[name] - start) ** 2).sum() for name, start in self._start.items()]
        return torch.stack(moved).sum()

    def parameters(self) -> list[nn.Parameter]:
        """Return the trained parameters."""
        return list(self._trained.values())

    def merged(self) -> CostModel:
        """Return a copy of the original model with the trained weights, in evaluation mode; ends the training."""
        for name in self._factors:
            linear = self.model.get_submodule(name.rpartition(".")[0])
            parametrize.remove_parametrizations(linear, "weight", leave_parametrized=True)
        self._factors = {}
        result = copy.deepcopy(self._original)
        result.load_state_dict(self.model.state_dict())
        return result.eval()


def _add_factors(model: CostModel, rank: int) -> dict[str, LowRank]:
    """Add factors of low rank to every trainable matrix of an `nn.Linear`, by the name of the matrix."""
    factors: dict[str, LowRank] = {}
    linears = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear) and m.weight.requires_grad]
    for name, linear in linears:
        factors[f"{name}.weight"] = LowRank(linear.weight, rank)
        parametrize.register_parametrization(linear, "weight", factors[f"{name}.weight"])
    return factors
