"""Few-shot fine-tuning: a pretrained ranker, a few measured programs a task, small steps near the start."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..models import CostModel, TreeModel
from ..training.batches import Batch, epoch_batches
from ..training.dataset import RankingDataset
from ..training.losses import get_loss
from .errors import LabelError, NotTrainableError, SourceMismatchError, UpdateError
from .updates import UPDATES, Update
from .validation import HOLD_BY, held_accuracy, hold_out, smooth


@dataclass(frozen=True)
class FineTuneConfig:
    """How far and how fast a few labels may move a model.

    The defaults were chosen on validation tasks; `scripts/bench_choices.py` changes each of them alone.

    Attributes:
        learning_rate: of the encoder; head_learning_rate: of the decoder.
        anchor: weight of the squared distance to the start point (L2-SP), which the loss adds.
        loss: a name of `zoo.training.losses`.
        epochs: passes over the tasks at most; patience: passes without a better validation before stopping.
        blind_epochs: passes when the validation part is too small to decide.
        val_share: share held for validation.
        val_by: "programs" of each task (of 5 or more), for a model that is to rank these tasks; or whole "tasks",
            for one that is to rank others.
        min_val_pairs: ordered pairs that validation needs to decide.
        refit: train again from the start point on all programs for as many passes as were best.
        tasks_per_batch: tasks in one step; programs_per_task: programs of a task in one step.
        clip: largest norm of the gradient.
        layer_decay: each layer learns at so many times the rate of the next one towards the score (see
            `updates.layer_depths`).
        update: "all" layers, the "head" alone, "low-rank" factors of the linear layers' matrices, or "auto".
        rank, low_rank_learning_rate: of the factors.
        low_rank_below: labels, of all tasks together, below which "auto" takes factors of low rank, else all layers;
            it never takes the head alone.
        seed: of the validation choice, the order of tasks and the factors.
    """

    learning_rate: float = 3e-4
    head_learning_rate: float = 5e-4
    anchor: float = 1e-2
    loss: str = "pairwise_rank"
    epochs: int = 60
    patience: int = 12
    blind_epochs: int = 15
    val_share: float = 0.25
    val_by: str = "programs"
    min_val_pairs: int = 100
    refit: bool = True
    tasks_per_batch: int = 8
    programs_per_task: int = 128
    clip: float = 1.0
    layer_decay: float = 1.0
    update: str = "auto"
    rank: int = 4
    low_rank_learning_rate: float = 1e-3
    low_rank_below: int = 48
    seed: int = 0

    def __post_init__(self) -> None:
        for name, known in (("update", ("auto", *UPDATES)), ("val_by", HOLD_BY)):
            if (value := getattr(self, name)) not in known:
                raise UpdateError(
                    f"{name} of a fine-tuning is {value!r}", remedy=f"use one of: {', '.join(known)}", setting=name
                )

    def update_for(self, labels: int) -> str:
        """The kind of update that so many labels get."""
        if self.update != "auto":
            return self.update
        return "low-rank" if labels < self.low_rank_below else "all"

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)


@dataclass(frozen=True)
class FineTuneResult:
    """A fine-tuned copy of the model, and how it came about.

    Attributes:
        model: the new model; the one passed in is unchanged.
        epochs: passes that the new weights had; 0 when no pass was better than the start point.
        validated: whether a validation part chose `epochs`.
        val_curve: validation pairwise accuracy before the first and after every pass; empty without one.
        programs: programs learnt from; tasks: tasks that had an order to learn.
        update: which of `updates.UPDATES` it was.
    """

    model: CostModel
    epochs: int
    validated: bool
    val_curve: tuple[float, ...]
    programs: int
    tasks: int
    update: str


def fine_tune(
    model: CostModel,
    data: RankingDataset,
    config: FineTuneConfig | None = None,
    on_epoch: Callable[[int, float], None] | None = None,
) -> FineTuneResult:
    """Fine-tune a copy of a model on measured programs. Deterministic for equal inputs on one machine.

    Only parameters that require a gradient move, and only they are anchored: a frozen base stays as it is.

    Args:
        model: the pretrained model.
        data: measured programs, several of each task.
        config: defaults suit a few hundred programs.
        on_epoch: called after every pass with its number and the validation accuracy (NaN without one).

    Raises:
        NotTrainableError: the model is made of trees, or nothing of it that may move requires a gradient.
        LabelError: no task has two programs of different latency, or a latency is NaN.
        SourceMismatchError: the programs are of other features than the model's.
    """
    check_trainable(model)
    config = config or FineTuneConfig()
    check_features(model, data)
    tasks = check_labels(data)
    held = hold_out(data, config.val_share, config.min_val_pairs, config.seed, config.val_by)
    curve: list[float] = []
    if held is not None:
        curve = _search(_begin(model, data, config), data, held, config, on_epoch)
    epochs = int(np.argmax(smooth(curve))) if curve else config.blind_epochs
    final = data if config.refit or held is None else data.take(np.flatnonzero(~held))
    update = _begin(model, data, config)
    for number, _ in zip(range(epochs), _passes(update, final, config), strict=False):
        if on_epoch is not None and held is None:
            on_epoch(number + 1, math.nan)
    kind = config.update_for(len(data))
    return FineTuneResult(update.plain(), epochs, held is not None, tuple(curve), len(data), tasks, kind)


def check_trainable(model: CostModel) -> None:
    """Raises NotTrainableError for a model that gradients cannot move."""
    if isinstance(model, TreeModel):
        raise NotTrainableError(
            f"a {model.arch} is made of trees, which a few measured programs cannot move",
            remedy="adapt a network (`tchub list` shows them), or train new trees with `tchub train`",
            arch=model.arch,
        )


def check_features(model: CostModel, data: RankingDataset) -> None:
    """Raises SourceMismatchError for programs of other features than the model reads."""
    width = data.features.shape[2]
    if width != model.config.width:
        raise SourceMismatchError(
            f"the programs have {width} columns a row, this {model.arch} reads {model.config.width}",
            remedy="extract the features of the model's own schema (the card names it)",
            expected=model.config.width,
            found=width,
        )


def check_labels(data: RankingDataset) -> int:
    """Number of tasks with an order to learn.

    Raises:
        LabelError: there is none, or a latency is not a latency.
    """
    useful = sum(len(m) > 1 and np.ptp(data.latency[m]) > 0 for m in data.members)
    if not useful or not np.all(np.isfinite(data.latency) & (data.latency > 0)):
        raise LabelError(
            f"{len(data)} programs teach no ranking: no task has two different latencies",
            remedy="measure more of each task (a larger --budget), or check the clock (`tchub doctor`)",
            programs=len(data),
        )
    return int(useful)


def _search(
    update: Update,
    data: RankingDataset,
    held: np.ndarray,
    config: FineTuneConfig,
    on_epoch: Callable[[int, float], None] | None,
) -> list[float]:
    """Validation accuracy before and after each pass, until it has not grown for `patience` passes."""
    train = data.take(np.flatnonzero(~held))
    curve = [held_accuracy(update.model, data, held)]
    for number, _ in zip(range(config.epochs), _passes(update, train, config), strict=False):
        curve.append(held_accuracy(update.model, data, held))
        if on_epoch is not None:
            on_epoch(number + 1, curve[-1])
        if len(curve) - 1 - int(np.argmax(curve)) >= config.patience:
            break
    return curve


def _begin(model: CostModel, data: RankingDataset, config: FineTuneConfig) -> Update:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)  # of the factors of low rank
        return Update(model, config.update_for(len(data)), config, data.features)


def _passes(update: Update, data: RankingDataset, config: FineTuneConfig) -> Iterator[None]:
    """Trains in place, yielding after every pass over the tasks; endless."""
    optimizer = torch.optim.Adam(update.groups)
    rng = np.random.default_rng([config.seed, 1])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        while True:
            update.model.train()
            for batch in epoch_batches(data, config.tasks_per_batch, config.programs_per_task, rng):
                loss = _loss(update.model, data, batch, config.loss, rng) + config.anchor * update.distance()
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(update.parameters(), config.clip)
                optimizer.step()
            yield


def _loss(model: CostModel, data: RankingDataset, batch: Batch, name: str, rng: np.random.Generator) -> Tensor:
    device = next(model.parameters()).device
    mask = torch.from_numpy(batch.mask).to(device)
    labels = torch.from_numpy(batch.labels).to(device, torch.float32)
    rows = model.describe(torch.from_numpy(data.features[batch.index]).to(device)).float()
    return model.training_loss(rows, labels, mask, get_loss(name), rng)
