"""Ensembles: several networks of one architecture whose weighted scores are added."""

from collections.abc import Sequence
from typing import ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from .base import CostModel, Loss, ModelConfig
from .context import ContextModel
from .registry import Architecture, create, register_derived

SUFFIX = "-ensemble"
PAPER = "Hansen and Salamon, Neural Network Ensembles, 1990"


class Ensemble(CostModel):
    """The weighted sum of its members' scores (Hansen and Salamon 1990); every network X has an `X-ensemble`.

    Members that were trained in different ways err in different places, so the sum errs less. The config is X's
    with one more setting: `members`, their number.

    Attributes:
        of: the architecture of the members.
        members: the networks; shares: (members,) the factor of each one's score, fixed.
    """

    of: ClassVar[Architecture]
    shares: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        settings = config.as_dict()
        count = settings.pop("members")
        own = self.of.config(**settings)
        self.members = nn.ModuleList([self.of.model(own) for _ in range(count)])
        self.register_buffer("shares", torch.full((count,), 1 / count))

    @classmethod
    def around(cls, models: Sequence[CostModel], shares: Sequence[float]) -> "Ensemble":
        """Return an ensemble of copies of networks of one architecture and size, with the factor of each one's score.

        The shares of models that take context add up to 1, so that the sum is an estimate of -log(latency) as well.

        Raises:
            ModelConfigError: there is no ensemble of such models, or of so many.
        """
        first = models[0]
        ensemble = create(first.arch + SUFFIX, **(first.config.as_dict() | {"members": len(models)}))
        assert isinstance(ensemble, Ensemble)
        for member, model in zip(ensemble.each, models, strict=True):
            member.load_state_dict(model.state_dict())
        ensemble.shares.copy_(torch.tensor(shares))
        weight = next(first.parameters())
        return ensemble.to(weight.device, weight.dtype).train(first.training)

    @property
    def each(self) -> list[CostModel]:
        """Return the members, in order."""
        return cast("list[CostModel]", list(self.members))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([member(x) for member in self.each], dim=-1) @ self.shares

    def forward_heads(self, x: Tensor) -> Tensor:
        return torch.stack([member.forward_heads(x) for member in self.each], dim=-1) @ self.shares

    def prepare(self, features: Tensor) -> None:
        for member in self.each:
            member.prepare(features)

    def device_slot(self, x: Tensor) -> Tensor | None:
        return self.each[0].device_slot(x)

    def admit(self, features: Tensor) -> None:
        for member in self.each:
            member.admit(features)


class ContextEnsemble(Ensemble, ContextModel):
    """An `Ensemble` of models that take measured programs as context: each corrects its own scores by them."""

    def describe(self, x: Tensor) -> Tensor:
        """Return the ensemble's score, then score and embedding of each member: (batch, 1 + members * columns)."""
        rows = [member.describe(x) for member in self.each]
        scores = torch.stack([row[:, 0] for row in rows], dim=1)
        return torch.cat([(scores @ self.shares)[:, None], *rows], dim=1)

    def training_loss(self, rows: Tensor, labels: Tensor, mask: Tensor, loss: Loss, rng: np.random.Generator) -> Tensor:
        """Return the mean loss of the members: each learns for itself."""
        losses = [m.training_loss(row, labels, mask, loss, rng) for m, row in self._split(rows[:, 1:])]
        return torch.stack(losses).mean()

    def condition(self, scores: Tensor, context: Tensor, measured: Tensor) -> tuple[Tensor, Tensor]:
        """Return levels (tasks, members) and weights (tasks, n, members), those of each member."""
        parts = [m.condition(row[..., 0], row[..., 1:], measured) for m, row in self._split(context)]
        levels, weights = zip(*parts, strict=True)
        return torch.cat(levels, dim=1), torch.cat(weights, dim=2)

    def correct(self, scores: Tensor, embeddings: Tensor, context: Tensor, level: Tensor, weights: Tensor) -> Tensor:
        scores_of_each = [
            member.correct(row[..., 0], row[..., 1:], known[..., 1:], level[:, [i]], weights[:, :, [i]])
            for i, ((member, row), (_, known)) in enumerate(
                zip(self._split(embeddings), self._split(context), strict=True)
            )
        ]
        return torch.stack(scores_of_each, dim=-1) @ self.shares.to(scores_of_each[0].dtype)

    def _split(self, rows: Tensor) -> list[tuple[ContextModel, Tensor]]:
        """Return each member with its own columns of (..., members * columns)."""
        return list(zip(cast("list[ContextModel]", self.each), rows.chunk(len(self.members), dim=-1), strict=True))


def register_ensembles() -> None:
    """Make `X-ensemble` known for every network X that is registered by now."""
    register_derived(
        "ensemble", Ensemble, ContextEnsemble,
        ending=SUFFIX, settings={"members": 4}, paper=PAPER,
    )  # fmt: skip
