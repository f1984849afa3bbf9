"""How corpora are added to a knowledge base."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from ...training import RankingDataset, TrainConfig
from ..continual import ContinualConfig

# A running mean of the weights (`TrainConfig.average`, 0.99) has left what it began with after about so many steps.
LEAST_STEPS = 200


@dataclass(frozen=True)
class DistillSettings:
    """What decides a run, besides the corpora.

    Attributes:
        seed: of weights, batches and the programs taken.
        epochs: passes of each phase; 0 for `ContinualConfig`'s own, and more of them where a device has so few
            programs that a phase would be of fewer than `LEAST_STEPS` steps. A first device has one phase, and twice
            as many.
        per_task: programs of a task at most, for learning and for choosing an epoch; 0 takes all.
        ewc: hold back weights that earlier devices depend on (equation 9).
        keep_order: learn the corpora in the order given.
        recipe: of the first device of a new base, and of what the phases have in common with a training: loss,
            optimizer, batches; the architecture's own unless given.
    """

    seed: int = 0
    epochs: int = 0
    per_task: int = 200
    ewc: bool = True
    keep_order: bool = False
    recipe: str = ""

    def first(self, arch: str) -> TrainConfig:
        """The recipe that a new base's first device is learnt by."""
        recipe = TrainConfig.find(self.recipe or arch).pretraining()
        return replace(recipe, epochs=2 * self.epochs, warmup_epochs=1) if self.epochs else recipe

    def phases(self, arch: str, data: RankingDataset | None = None) -> ContinualConfig:
        """Both phases of a further device, whose programs `data` are.

        Rates are the same share of the recipe's as `ContinualConfig`'s are of TileNet's, for which they were chosen.
        """
        own, tilenet, usual = self.first(arch), TrainConfig.find("tilenet"), ContinualConfig()
        shared = ("loss", "optimizer", "weight_decay", "clip_norm", "average", "groups_per_batch", "programs_per_group")
        scale = own.learning_rate / tilenet.learning_rate
        least = 0 if data is None else math.ceil(LEAST_STEPS / _steps(own, data))
        return replace(
            usual,
            **{name: getattr(own, name) for name in shared},
            learn_rate=usual.learn_rate * scale,
            distill_rate=usual.distill_rate * scale,
            learn_epochs=self.epochs or max(usual.learn_epochs, least),
            distill_epochs=self.epochs or max(usual.distill_epochs, least),
            distill_period=usual.distill_period if self.epochs else max(usual.distill_period, least // 2),
            strength=usual.strength if self.ewc else 0.0,
        )

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)


def _steps(recipe: TrainConfig, data: RankingDataset) -> int:
    """Steps of one pass: a task's programs are cut into groups, and so many groups are a batch."""
    groups = sum(math.ceil(len(m) / recipe.programs_per_group) for m in data.members if len(m) > 1)
    return max(1, math.ceil(groups / recipe.groups_per_batch))
