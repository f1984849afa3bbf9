"""How corpora are added to a knowledge base."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from ...training import RankingDataset, TrainConfig
from ...training.errors import TrainConfigError
from ..continual import PAPER, PAPER_EPOCHS, ContinualConfig

# A running mean of the weights (`TrainConfig.average`, 0.99) has left what it began with after about so many steps.
LEAST_STEPS = 200
SCHEDULES = ("tchub", "paper")


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
        schedule: "tchub", or "paper": TCL's own losses, rates, batches and epochs (`continual.PAPER`), evenly divided
            over the devices of the run and their phases. Of the recipe it takes the sizes of the network alone.
    """

    seed: int = 0
    epochs: int = 0
    per_task: int = 200
    ewc: bool = True
    keep_order: bool = False
    recipe: str = ""
    schedule: str = "tchub"

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise TrainConfigError(
                f"no schedule is called {self.schedule!r}", remedy=f"use one of: {', '.join(SCHEDULES)}", key="schedule"
            )

    def first(self, arch: str, devices: int = 1) -> TrainConfig:
        """The recipe that the first of so many devices of a new base is learnt by."""
        recipe = TrainConfig.find(self.recipe or arch).pretraining()
        if self.schedule == "paper":
            own = {name: getattr(recipe, name) for name in ("arch", "model", "feature_schema")}
            phase = self._paper(devices).learning()
            return replace(phase, **own, epochs=2 * phase.epochs)
        return replace(recipe, epochs=2 * self.epochs, warmup_epochs=1) if self.epochs else recipe

    def phases(self, arch: str, data: RankingDataset | None = None, devices: int = 1) -> ContinualConfig:
        """Both phases of a further device, whose programs `data` are, in a run of so many devices.

        By tchub's schedule, rates are the same share of the recipe's as `ContinualConfig`'s are of TileNet's, for
        which they were chosen.
        """
        if self.schedule == "paper":
            return self._paper(devices)
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

    def _paper(self, devices: int) -> ContinualConfig:
        paper = replace(PAPER, strength=PAPER.strength if self.ewc else 0.0)
        if self.epochs:
            return replace(paper, learn_epochs=self.epochs, distill_epochs=self.epochs)
        return paper.divided(PAPER_EPOCHS, devices)

    def as_dict(self) -> dict[str, Any]:
        """JSON form; without the usual schedule, so that a run begun before there was a choice goes on."""
        told = asdict(self)
        return told if self.schedule != SCHEDULES[0] else {k: v for k, v in told.items() if k != "schedule"}


def _steps(recipe: TrainConfig, data: RankingDataset) -> int:
    """Steps of one pass: a task's programs are cut into groups, and so many groups are a batch."""
    groups = sum(math.ceil(len(m) / recipe.programs_per_group) for m in data.members if len(m) > 1)
    return max(1, math.ceil(groups / recipe.groups_per_batch))
