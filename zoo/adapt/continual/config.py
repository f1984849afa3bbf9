"""How a knowledge base learns: both phases of one device (`ContinualConfig`), and a run (`DistillConfig`)."""

import math
from dataclasses import dataclass, replace
from typing import Any

from ...models.progressive import ColumnStart
from ...training import RankingDataset
from ...training.config import TrainConfig
from ...training.dataset import steps_per_epoch

_RECIPE = TrainConfig(
    loss="pairwise_rank", optimizer="adamw", weight_decay=0.01, clip_norm=1.0, average=0.99, programs_per_group=96
)


@dataclass(frozen=True)
class ContinualConfig:
    """Settings of both phases; see `PAPER` for TCL's own.

    The defaults were chosen on validation tasks. A mean rank loss has a Fisher diagonal so small that the paper's
    lambda holds little: it is rehearsal that keeps what a base knows.

    Attributes:
        learn_epochs, distill_epochs: passes over the device's programs in each phase.
        recipe: loss, optimizer and batches of both phases; its rates, epochs and choice of an epoch are not used.
        learn_rate, learn_period: at the start of the first phase, and the epochs of one cosine (0: all of them).
        distill_rate, distill_period, distill_decay: the second phase's rate is multiplied by the decay once a period.
        beta: weight of the labels beside the column's order (equation 9).
        strength: lambda of equation 9, of elastic weight consolidation; 0 leaves it out.
        rehearsal: weight of the base's earlier scores for the new programs on the devices that it knows (ours; 0 for
            the paper's loss).
        column: start of the column, see `ProgressiveNetwork.new_column`.
        select: metric on validation tasks that chooses the first phase's epoch, or "last".
        fisher_groups: groups at most that the Fisher diagonal of a device is the mean of.
    """

    learn_epochs: int = 12
    distill_epochs: int = 20
    recipe: TrainConfig = _RECIPE
    learn_rate: float = 0.002
    learn_period: int = 0
    distill_rate: float = 0.001
    distill_period: int = 10
    distill_decay: float = 0.1
    beta: float = 0.5
    strength: float = 10_000.0
    rehearsal: float = 3.0
    column: ColumnStart = "base"
    select: str = "pairwise"
    fisher_groups: int = 256

    def learning(self) -> TrainConfig:
        """Return the recipe of the first phase."""
        rates = {"learning_rate": self.learn_rate, "schedule": "cosine", "period": self.learn_period}
        return self._phase(rates | {"epochs": self.learn_epochs, "select": self.select})

    def distilling(self) -> TrainConfig:
        """Return the recipe of the second phase, last epoch kept: the best one of the device forgets the most."""
        rates = {"learning_rate": self.distill_rate, "schedule": "step"}
        rates |= {"period": self.distill_period, "decay": self.distill_decay}
        return self._phase(rates | {"epochs": self.distill_epochs, "select": "last"})

    def _phase(self, settings: dict[str, Any]) -> TrainConfig:
        return replace(self.recipe, **{"warmup_epochs": 0, "save_every": 1} | settings)


# TCL's own (sections 6 and 7.1.3), `tchub distill --schedule paper`: `PAPER_EPOCHS` over the devices of a run and their
# phases, batches of 1,024 programs. The column goes on from the device before: figure 8 shows the score on that device
# sink, not vanish.
PAPER_EPOCHS = 100
PAPER = ContinualConfig(
    recipe=TrainConfig(loss="lambda_rank", groups_per_batch=8, programs_per_group=128),
    learn_rate=7e-4,
    learn_period=10,
    distill_rate=7e-4,
    distill_period=5,
    rehearsal=0.0,
    column="previous",
    select="last",
)

# A running mean of the weights (`TrainConfig.average`, 0.99) has left its start after about so many steps.
LEAST_STEPS = 200


@dataclass(frozen=True)
class DistillConfig:
    """Settings of a run of `tchub distill`, besides the corpora.

    Attributes:
        seed: of weights, batches and the programs taken.
        epochs: passes of each phase; 0 for `ContinualConfig`'s own, and for at least `LEAST_STEPS` steps a phase. A
            first device has one phase, and twice as many.
        per_task: programs of a task at most; 0 takes all.
        ewc: hold back weights that earlier devices depend on (equation 9).
        keep_order: learn the corpora in the order given.
        recipe: of the first device of a new base, and of loss, optimizer and batches of the phases; the architecture's
            own unless given.
        schedule: "tchub", or "paper": TCL's own losses, rates, batches and epochs (`PAPER`), evenly divided over the
            devices of the run and their phases. Of the recipe it takes the sizes of the network alone.
    """

    seed: int = 0
    epochs: int = 0
    per_task: int = 200
    ewc: bool = True
    keep_order: bool = False
    recipe: str = ""
    schedule: str = "tchub"

    def first(self, arch: str, devices: int = 1) -> TrainConfig:
        """Return the recipe for the first of so many devices of a new base."""
        recipe = TrainConfig.find(self.recipe or arch).pretraining()
        if self.schedule == "paper":
            own = {name: getattr(recipe, name) for name in ("arch", "model", "feature_schema")}
            phase = self._paper(devices).learning()
            return replace(phase, **own, epochs=2 * phase.epochs)
        return replace(recipe, epochs=2 * self.epochs, warmup_epochs=1) if self.epochs else recipe

    def phases(self, arch: str, data: RankingDataset | None = None, devices: int = 1) -> ContinualConfig:
        """Return both phases of a further device with these programs, in a run of so many devices.

        By tchub's schedule, rates are the same share of the recipe's as `ContinualConfig`'s are of TileNet's, for
        which they were chosen.
        """
        if self.schedule == "paper":
            return self._paper(devices)
        own, tilenet, usual = self.first(arch), TrainConfig.find("tilenet"), ContinualConfig()
        scale = own.learning_rate / tilenet.learning_rate
        least = 0
        if data is not None:
            least = math.ceil(LEAST_STEPS / steps_per_epoch(data, own.programs_per_group, own.groups_per_batch))
        return replace(
            usual,
            recipe=own,
            learn_rate=usual.learn_rate * scale,
            distill_rate=usual.distill_rate * scale,
            learn_epochs=self.epochs or max(usual.learn_epochs, least),
            distill_epochs=self.epochs or max(usual.distill_epochs, least),
            distill_period=usual.distill_period if self.epochs else max(usual.distill_period, least // 2),
            strength=usual.strength if self.ewc else 0.0,
        )

    def _paper(self, devices: int) -> ContinualConfig:
        each = self.epochs or max(1, PAPER_EPOCHS // (2 * devices))
        strength = PAPER.strength if self.ewc else 0.0
        return replace(PAPER, strength=strength, learn_epochs=each, distill_epochs=each)
