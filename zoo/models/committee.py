"""Several networks of one architecture that say together how fast a program is."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from .base import CostModel, ModelConfig
from .derived import register_derived
from .informed import ContextModel
from .registry import Architecture, create

SUFFIX = "-committee"
PAPER = "Hansen and Salamon, Neural Network Ensembles, 1990"


class Committee(CostModel):
    """The weighted sum of what its members say of a program; every network X of the zoo has one, `X-committee`.

    Members that came to their scores in other ways err in other places: the sum errs less. A pretrained network that a
    few labels of a device moved, and one that knows those labels alone, are such members (`adapt.committee_method`).

    The config is X's with one more setting: `members`, how many. What each member counts lies among the weights.

    Attributes:
        of: the architecture of the members.
        members: the networks; shares: (members,) what each score is multiplied by, fixed.
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
    def around(cls, models: Sequence[CostModel], shares: Sequence[float]) -> Committee:
        """A committee of copies of networks of one architecture and size.

        Args:
            models: the members, one at least.
            shares: what the score of each is multiplied by, one a member, finite and not below 0. Those of models that
                take context add up to 1: what they say together is an estimate of -log(latency) as well.

        Raises:
            UnknownArchitectureError: no committee is made of such models.
            ModelConfigError: there are too many.
            ValueError: the models differ in their sizes, or the shares are not as told.
        """
        if len({(model.arch, model.config) for model in models}) != 1:
            raise ValueError("the members of a committee are of one architecture and size")
        if len(shares) != len(models) or not all(0 <= share < math.inf for share in shares):
            raise ValueError(f"a committee of {len(models)} has as many shares, 0 or more, not {list(shares)}")
        first = models[0]
        if isinstance(first, ContextModel) and not math.isclose(sum(shares), 1, abs_tol=1e-6):
            raise ValueError(f"the shares of models that take context add up to 1, not to {sum(shares):g}")
        made = create(first.arch + SUFFIX, **(first.config.as_dict() | {"members": len(models)}))
        assert isinstance(made, Committee)
        for member, model in zip(made.each, models, strict=True):
            member.load_state_dict(model.state_dict())
        made.shares.copy_(torch.tensor(shares))
        place = next(first.parameters())
        return made.to(place.device, place.dtype).train(first.training)

    @property
    def each(self) -> list[CostModel]:
        """The members, in order."""
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


class CommitteeInContext(Committee, ContextModel):
    """A `Committee` of models that take measured programs as context: each corrects its own scores by them."""

    def describe(self, x: Tensor) -> Tensor:
        """The score of the committee, then score and embedding of each member: (batch, 1 + members * columns)."""
        rows = [member.describe(x) for member in self.each]
        scores = torch.stack([row[:, 0] for row in rows], dim=1)
        return torch.cat([(scores @ self.shares)[:, None], *rows], dim=1)

    def training_loss(
        self,
        rows: Tensor,
        labels: Tensor,
        mask: Tensor,
        loss: Callable[[Tensor, Tensor, Tensor], Tensor],
        rng: np.random.Generator,
    ) -> Tensor:
        """The mean loss of the members: each learns for itself."""
        losses = [m.training_loss(row, labels, mask, loss, rng) for m, row in self._apart(rows[:, 1:])]
        return torch.stack(losses).mean()

    def condition(self, scores: Tensor, context: Tensor, measured: Tensor) -> tuple[Tensor, Tensor]:
        """Those of each member: levels (tasks, members) and weights (tasks, n, members)."""
        told = [m.condition(row[..., 0], row[..., 1:], measured) for m, row in self._apart(context)]
        levels, weights = zip(*told, strict=True)
        return torch.cat(levels, dim=1), torch.cat(weights, dim=2)

    def correct(self, scores: Tensor, embeddings: Tensor, context: Tensor, level: Tensor, weights: Tensor) -> Tensor:
        said = [
            member.correct(row[..., 0], row[..., 1:], known[..., 1:], level[:, [i]], weights[:, :, [i]])
            for i, ((member, row), (_, known)) in enumerate(
                zip(self._apart(embeddings), self._apart(context), strict=True)
            )
        ]
        return torch.stack(said, dim=-1) @ self.shares.to(said[0].dtype)

    def _apart(self, rows: Tensor) -> list[tuple[ContextModel, Tensor]]:
        """Each member with its own columns of (..., members * columns)."""
        return list(zip(cast("list[ContextModel]", self.each), rows.chunk(len(self.members), dim=-1), strict=True))


def register_committees() -> None:
    """Makes `X-committee` known for every network X that is registered by now."""
    register_derived(
        "committee", Committee, CommitteeInContext,
        endings=(SUFFIX, "Committee"), settings=[("members", int, 4)], paper=PAPER,
    )  # fmt: skip
