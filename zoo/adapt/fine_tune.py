"""Few-shot fine-tuning: a pretrained ranker, a few measured programs a task, small steps near the start."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ..models import CostModel
from ..training.dataset import Batch, RankingDataset, epoch_batches
from ..training.losses import get_loss
from ..training.metrics import count_pairs, pair_share
from .errors import AdaptError, LabelError

# Factors of low rank belong to the matrices of linear layers; all other weights then stay as they are: biases,
# convolutions, and the alpha of a knowledge base's laterals.
UPDATES = ("all", "low-rank")
# Names of the submodules that turn the encoding into a score; the rest is the encoder.
HEAD_NAMES = frozenset({"decoder", "head"})


@dataclass(frozen=True)
class FineTuneConfig:
    """How far and how fast a few labels may move a model.

    The defaults were chosen on validation tasks.

    Attributes:
        learning_rate: of the encoder; head_learning_rate: of the decoder.
        anchor: weight of the squared distance to the start point (L2-SP), which the loss adds.
        loss: a name of `zoo.training.losses`.
        epochs: passes over the tasks at most; patience: passes without a better validation before stopping.
        blind_epochs: passes when the validation part is too small to decide.
        val_share: share of each task's programs held for validation; tasks of fewer than 5 give none.
        min_val_pairs: ordered pairs that validation needs to decide.
        refit: train again from the start point on all programs for as many passes as were best.
        tasks_per_batch: tasks in one step; programs_per_task: programs of a task in one step.
        clip: largest norm of the gradient.
        update: "all" layers, "low-rank" factors of the linear layers' matrices, or "auto".
        rank, low_rank_learning_rate: of the factors.
        low_rank_below: labels, of all tasks together, below which "auto" takes factors of low rank, else all layers.
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
    min_val_pairs: int = 100
    refit: bool = True
    tasks_per_batch: int = 8
    programs_per_task: int = 128
    clip: float = 1.0
    update: str = "auto"
    rank: int = 4
    low_rank_learning_rate: float = 1e-3
    low_rank_below: int = 48
    seed: int = 0

    def __post_init__(self) -> None:
        if self.update not in (known := ("auto", *UPDATES)):
            raise AdaptError(
                f"no update of a fine-tuning is called {self.update!r}", remedy=f"use one of: {', '.join(known)}"
            )

    def update_for(self, labels: int) -> str:
        """Return the kind of update for so many labels."""
        if self.update != "auto":
            return self.update
        return "low-rank" if labels < self.low_rank_below else "all"


@dataclass(frozen=True)
class FineTuneResult:
    """A fine-tuned copy of a model.

    Attributes:
        epochs: passes that the new weights had; 0 when no pass was better than the start point.
        validated: True if a validation part chose `epochs`.
        val_curve: validation pairwise accuracy before the first and after every pass; empty without one.
    """

    model: CostModel
    epochs: int
    validated: bool
    val_curve: tuple[float, ...]


def fine_tune(
    model: CostModel,
    data: RankingDataset,
    config: FineTuneConfig | None = None,
    on_epoch: Callable[[int, float], None] = lambda number, accuracy: None,
) -> FineTuneResult:
    """Fine-tune a copy of a model on measured programs. Deterministic for equal inputs on one machine.

    Only parameters that require a gradient move. `on_epoch` is called after every pass with its number and the
    validation accuracy (NaN without one); what it raises ends the training.

    Raises:
        AdaptError: the model is frozen whole, or the programs are of other features than it reads.
        LabelError: no task has two programs of different latency, or a latency is NaN.
    """
    config = config or FineTuneConfig()
    check_features(model, data)
    check_labels(data)
    held = split_validation(data, config.val_share, config.min_val_pairs, config.seed)
    curve: list[float] = []
    if held is not None:
        curve = _validation_curve(_begin(model, data, config), data, held, config, on_epoch)
    # Each pass counts with its neighbours: one lucky pass among noisy ones does not decide.
    smooth = np.convolve(np.pad(curve, 1, mode="edge"), np.full(3, 1 / 3), mode="valid") if curve else None
    epochs = config.blind_epochs if smooth is None else int(smooth.argmax())
    final = data if config.refit or held is None else data.take(np.flatnonzero(~held))
    update = _begin(model, data, config)
    for number, _ in zip(range(epochs), _passes(update, final, config), strict=False):
        if held is None:
            on_epoch(number + 1, math.nan)
    return FineTuneResult(update.merged(), epochs, held is not None, tuple(curve))


def in_head(name: str) -> bool:
    """Return whether a parameter of this dotted name belongs to the layers that turn the encoding into a score."""
    return not HEAD_NAMES.isdisjoint(name.split("."))


def check_features(model: CostModel, *sets: RankingDataset | None) -> None:
    """Raise AdaptError for programs of other features than the model reads."""
    for data in sets:
        if data is not None and data.features.shape[2] != model.config.width:
            raise AdaptError(
                f"the programs have {data.features.shape[2]} columns a row, this {model.arch} reads "
                f"{model.config.width}",
                remedy="extract the features of the model's own schema, on a device of its kind (the card names both)",
                expected=model.config.width,
                actual=data.features.shape[2],
            )


def check_labels(data: RankingDataset) -> None:
    """Raise LabelError if no task has an order to learn, or a latency is not a latency."""
    useful = any(len(m) > 1 and np.ptp(data.latency[m]) > 0 for m in data.members)
    if not useful or not np.all(np.isfinite(data.latency) & (data.latency > 0)):
        raise LabelError(
            f"{len(data)} programs teach no ranking: no task has two different latencies",
            remedy="measure more of each task (a larger --budget), or check the clock (`tchub doctor`)",
        )


def split_validation(data: RankingDataset, share: float, min_pairs: int, seed: int) -> np.ndarray | None:
    """Return the validation programs, (N,) bool, a share of each task's of 5 or more; None: too few ordered pairs."""
    rng = np.random.default_rng(seed)
    held = np.zeros(len(data), dtype=bool)
    for members in data.members if share > 0 else ():
        if len(members) >= 5:
            held[rng.permutation(members)[: max(1, round(share * len(members)))]] = True
    pairs = sum(count_pairs(data.latency[members], held[members]) for members in data.members)
    return held if pairs >= max(1, min_pairs) else None


def _validation_curve(
    update: Update,
    data: RankingDataset,
    held: np.ndarray,
    config: FineTuneConfig,
    on_epoch: Callable[[int, float], None],
) -> list[float]:
    """Return the validation accuracy before and after each pass, until it has not grown for `patience` passes."""
    train = data.take(np.flatnonzero(~held))
    curve = [_validation_accuracy(update.model, data, held)]
    for number, _ in zip(range(config.epochs), _passes(update, train, config), strict=False):
        curve.append(_validation_accuracy(update.model, data, held))
        on_epoch(number + 1, curve[-1])
        if len(curve) - 1 - int(np.argmax(curve)) >= config.patience:
            break
    return curve


def _validation_accuracy(model: CostModel, data: RankingDataset, held: np.ndarray) -> float:
    """Return the mean over tasks of the share of right pairs, those of held and learnt programs included.

    A task with two held programs has one pair of them alone, and a dozen with the rest.
    """
    scores = model.score(data.features)
    shares = [pair_share(scores[own], data.latency[own], held[own]) for own in data.members]
    return float(np.mean([share for share in shares if share is not None]))


def _begin(model: CostModel, data: RankingDataset, config: FineTuneConfig) -> Update:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)  # of the factors of low rank
        return Update(model, config.update_for(len(data)), config)


def _passes(update: Update, data: RankingDataset, config: FineTuneConfig) -> Iterator[None]:
    """Train in place, yielding after every pass over the tasks; endless."""
    optimizer = torch.optim.Adam(update.groups)
    rng = np.random.default_rng([config.seed, 1])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        update.model.train()  # to score it between the passes leaves it so
        while True:
            for batch in epoch_batches(data, config.tasks_per_batch, config.programs_per_task, rng):
                loss = batch_loss(update.model, data, batch, config.loss, rng) + config.anchor * update.distance()
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(update.trained, config.clip)
                optimizer.step()
            yield


def batch_loss(model: CostModel, data: RankingDataset, batch: Batch, name: str, rng: np.random.Generator) -> Tensor:
    """Return the loss of this name on one batch, by the model's own `training_loss` and `bound_loss`."""
    device = next(model.parameters()).device
    mask = torch.from_numpy(batch.mask).to(device)
    labels = torch.from_numpy(batch.labels).to(device, torch.float32)
    rows = model.describe(torch.from_numpy(data.features[batch.index]).to(device)).float()
    loss = model.training_loss(rows, labels, mask, get_loss(name), rng)
    if data.bounds is None:
        return loss
    return loss + model.bound_loss(rows, torch.from_numpy(data.bounds[batch.index]).to(device))


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
        trained: its parameters that move; groups: for the optimizer, the same with their learning rates.
    """

    def __init__(self, model: CostModel, kind: str, config: FineTuneConfig) -> None:
        """Raise AdaptError if nothing of the model may move this way."""
        self._original = model
        self.model = copy.deepcopy(model)
        names = [name for name, p in self.model.named_parameters() if p.requires_grad]
        self._factors: dict[str, LowRank] = {}
        if kind == "low-rank":
            # Every trainable matrix of a linear layer; they are listed first, since each gets submodules.
            modules = [(name, module) for name, module in self.model.named_modules() if isinstance(module, nn.Linear)]
            for name, linear in modules:
                if linear.weight.requires_grad:
                    self._factors[f"{name}.weight"] = LowRank(linear.weight, config.rank)
                    parametrize.register_parametrization(linear, "weight", self._factors[f"{name}.weight"])
            trained = {f"{name}.{part}": p for name, f in self._factors.items() for part, p in f.named_parameters()}
        else:
            trained = {name: self.model.get_parameter(name) for name in names}
        if not trained:
            raise AdaptError(
                f"nothing of this {model.arch} is trained by an update of kind {kind!r}",
                remedy="set requires_grad on what may move, or use the update 'all'",
            )
        self.model.requires_grad_(False)
        for parameter in trained.values():
            parameter.requires_grad_(True)
        self._start = [] if self._factors else [p.detach().clone() for p in trained.values()]
        self.trained = list(trained.values())
        groups: dict[float, list[nn.Parameter]] = {}
        for name, parameter in trained.items():
            rate = config.head_learning_rate if in_head(name) else config.learning_rate
            groups.setdefault(config.low_rank_learning_rate if self._factors else rate, []).append(parameter)
        self.groups: list[dict[str, Any]] = [{"params": own, "lr": rate} for rate, own in groups.items()]

    def distance(self) -> Tensor:
        """Return the squared distance of the weights from the start point."""
        moved = [factor.distance() for factor in self._factors.values()]
        moved += [((p - start) ** 2).sum() for p, start in zip(self.trained, self._start, strict=False)]
        return torch.stack(moved).sum()

    def merged(self) -> CostModel:
        """Return a copy of the original model with the trained weights, in evaluation mode; ends the training."""
        for name in self._factors:
            linear = self.model.get_submodule(name.rpartition(".")[0])
            parametrize.remove_parametrizations(linear, "weight", leave_parametrized=True)
        self._factors = {}
        result = copy.deepcopy(self._original)
        result.load_state_dict(self.model.state_dict())
        return result.eval()
