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

    The figures behind the defaults are of a V100 TileNet on 8 validation tasks of K80 and of MI50, 4, 8, 16 or 32
    random labels of each, judged on the rest of 300 programs a task: pairwise accuracy, mean of both targets and of
    the seeds 0 and 1 (A) or 2 to 4 (B), by `log_ranknet` unless told. Without any label it is 0.857. Differences
    below 0.005 are noise. No script of the repository repeats them.

    Attributes:
        learning_rate: of the encoder. A, all layers, 4 to 32 labels: 1e-4 0.862, 0.864, 0.881, 0.898; 3e-4 0.854,
            0.868, 0.885, 0.908; 1e-3 0.823, 0.870, 0.888, 0.909.
        head_learning_rate: of the decoder. B, 16 and 32 labels: 5e-4 0.885, 0.895; 1e-3 the same.
        anchor: weight of the squared distance to the start point (L2-SP), which the loss adds. A, 8 to 32 labels:
            none 0.868, 0.884, 0.911; 0.01 0.868, 0.885, 0.908; 0.1 0.868, 0.882, 0.894.
        loss: a name of `zoo.training.losses`. B, 16 and 32 labels: `pairwise_rank` 0.884, 0.904; `log_ranknet`
            0.885, 0.895; `lambda_rank` 0.884, 0.894. Mean top-1: 0.951, 0.957; 0.919, 0.951; 0.950, 0.955.
        epochs: passes over the tasks at most; patience: passes without a better validation before stopping.
        blind_epochs: passes when the validation part is too small to decide.
        val_share: share held for validation.
        val_by: "programs" of each task (of 5 or more), for a model that is to rank these tasks; or whole "tasks",
            for one that is to rank others. A tenth of 47 other tasks' programs taught nothing of the 8:
            by tasks 0.857 at a rate of 1e-4 (seed 0) and 0.853 at 5e-4 (1 and 2), by programs 0.851 at 1e-4 (A).
        min_val_pairs: ordered pairs that validation needs to decide.
        refit: train again from the start point on all programs for as many passes as were best.
        tasks_per_batch: tasks in one step; programs_per_task: programs of a task in one step.
        clip: largest norm of the gradient.
        layer_decay: each layer learns at so many times the rate of the next one towards the score (see
            `updates.layer_depths`). B, 16 and 32 labels: 1 0.885, 0.895; 0.85 0.875, 0.894; 0.7 0.880, 0.892.
        update: "all" layers, the "head" alone, "low-rank" factors of the linear layers' matrices, or "auto".
        rank, low_rank_learning_rate: of the factors. A, 4 to 32 labels: rank 4 at 1e-3 0.862, 0.861, 0.869, 0.881,
            at 3e-3 0.856, 0.865, 0.880, 0.897; rank 8 at 3e-3 0.841, 0.866, 0.880, 0.900.
        low_rank_below: labels below which "auto" takes factors of low rank, else all layers. 4 labels a task, 32
            together: 0.862 against 0.854 (A), 0.861 against 0.857 (B); 8 a task 0.862 against 0.865 (B). The head
            alone at 1e-3 had 0.858 with either (B), so "auto" never takes it.
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
