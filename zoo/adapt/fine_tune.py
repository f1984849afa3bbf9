"""Few-shot fine-tuning: a pretrained ranker, a few measured programs a task, small steps near the start."""

from __future__ import annotations

import copy
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
from ..training.metrics import PAIR_RATIO
from .errors import LabelError, NotTrainableError

# Names of the submodules that turn the encoding into a score; the rest is the encoder.
HEAD_NAMES = ("decoder", "head")


@dataclass(frozen=True)
class FineTuneConfig:
    """How far and how fast a few labels may move a model.

    Attributes:
        learning_rate: of the encoder; head_learning_rate: of the decoder.
        anchor: weight of the squared distance to the start point (L2-SP), which the loss adds.
        loss: a name of `zoo.training.losses`. With 4 and 12 labels of each of 45 CPU tasks, `log_ranknet`
            gained a little more than `lambda_rank` and lost less with too many passes.
        epochs: passes over the tasks at most; patience: passes without a better validation before stopping.
        blind_epochs: passes when the validation part is too small to decide.
        val_share: share of each task's programs held for validation; tasks with fewer than 5 give none.
        min_val_pairs: ordered pairs that validation needs to decide.
        refit: train again from the start point on all programs for as many passes as were best.
        tasks_per_batch: tasks in one step; programs_per_task: programs of a task in one step.
        clip: largest norm of the gradient.
        seed: of the validation choice and the order of tasks.
    """

    learning_rate: float = 1e-4
    head_learning_rate: float = 5e-4
    anchor: float = 1e-2
    loss: str = "log_ranknet"
    epochs: int = 60
    patience: int = 12
    blind_epochs: int = 15
    val_share: float = 0.25
    min_val_pairs: int = 100
    refit: bool = True
    tasks_per_batch: int = 8
    programs_per_task: int = 128
    clip: float = 1.0
    seed: int = 0

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
    """

    model: CostModel
    epochs: int
    validated: bool
    val_curve: tuple[float, ...]
    programs: int
    tasks: int


def fine_tune(
    model: CostModel,
    data: RankingDataset,
    config: FineTuneConfig | None = None,
    on_epoch: Callable[[int, float], None] | None = None,
) -> FineTuneResult:
    """Fine-tune a copy of a model on measured programs. Deterministic for equal inputs on one machine.

    Args:
        model: the pretrained model.
        data: measured programs, several of each task.
        config: defaults suit a few hundred programs.
        on_epoch: called after every pass with its number and the validation accuracy (NaN without one).

    Raises:
        NotTrainableError: the model is made of trees.
        LabelError: no task has two programs of different latency.
    """
    check_trainable(model)
    config = config or FineTuneConfig()
    tasks = _check_labels(data)
    held = _hold_for_validation(data, config)
    curve: list[float] = []
    if held is not None:
        curve = _search(copy.deepcopy(model), data, held, config, on_epoch)
    epochs = int(np.argmax(_smooth(curve))) if curve else config.blind_epochs
    tuned = copy.deepcopy(model)
    final = data if config.refit or held is None else data.take(np.flatnonzero(~held))
    for number, _ in zip(range(epochs), _passes(tuned, final, config), strict=False):
        if on_epoch is not None and held is None:
            on_epoch(number + 1, math.nan)
    tuned.eval()
    return FineTuneResult(tuned, epochs, held is not None, tuple(curve), len(data), tasks)


def check_trainable(model: CostModel) -> None:
    """Raises NotTrainableError for a model that gradients cannot move."""
    if isinstance(model, TreeModel):
        raise NotTrainableError(
            f"a {model.arch} is made of trees, which a few measured programs cannot move",
            remedy="adapt a network (`tchub list` shows them), or train new trees with `tchub train`",
            arch=model.arch,
        )


def _check_labels(data: RankingDataset) -> int:
    """Number of tasks with an order to learn."""
    useful = sum(len(m) > 1 and np.ptp(data.latency[m]) > 0 for m in data.members)
    if not useful:
        raise LabelError(
            f"{len(data)} programs teach no ranking: no task has two different latencies",
            remedy="measure more of each task (a larger --budget), or check the clock (`tchub doctor`)",
            programs=len(data),
        )
    return int(useful)


def _hold_for_validation(data: RankingDataset, config: FineTuneConfig) -> np.ndarray | None:
    """(N,) bool: a share of each task's programs, or None where they make too few pairs to decide by."""
    rng = np.random.default_rng(config.seed)
    held = np.zeros(len(data), dtype=bool)
    for members in data.members:
        if len(members) >= 5 and config.val_share > 0:
            held[rng.permutation(members)[: max(1, round(config.val_share * len(members)))]] = True
    pairs = sum(int(_held_pairs(data, held, members).sum()) for members in data.members)
    return held if pairs >= config.min_val_pairs else None


def _held_pairs(data: RankingDataset, held: np.ndarray, members: np.ndarray) -> np.ndarray:
    """(n, n) bool: row is faster than column by more than the noise, and one of them is held.

    Pairs of a held program with one that was learnt from count too: a task with two held programs makes one
    pair of them alone, and a dozen with the rest.
    """
    seconds, out = data.latency[members], held[members]
    return (seconds[:, None] * PAIR_RATIO < seconds[None, :]) & (out[:, None] | out[None, :])


def _held_accuracy(model: CostModel, data: RankingDataset, held: np.ndarray) -> float:
    """Mean over tasks of the share of `_held_pairs` in the right order; a tie is half right."""
    scores = model.score(data.features)
    shares = []
    for members in data.members:
        pairs = _held_pairs(data, held, members)
        if pairs.any():
            row, column = np.nonzero(pairs)
            ahead = scores[members][row] - scores[members][column]
            shares.append(float(np.mean((np.sign(ahead) + 1) / 2)))
    return float(np.mean(shares))


def _search(
    model: CostModel,
    data: RankingDataset,
    held: np.ndarray,
    config: FineTuneConfig,
    on_epoch: Callable[[int, float], None] | None,
) -> list[float]:
    """Validation accuracy before and after each pass, until it has not grown for `patience` passes."""
    train = data.take(np.flatnonzero(~held))
    curve = [_held_accuracy(model, data, held)]
    for number, _ in zip(range(config.epochs), _passes(model, train, config), strict=False):
        curve.append(_held_accuracy(model, data, held))
        if on_epoch is not None:
            on_epoch(number + 1, curve[-1])
        if len(curve) - 1 - int(np.argmax(curve)) >= config.patience:
            break
    return curve


def _smooth(curve: list[float]) -> np.ndarray:
    """Mean of each pass and its neighbours: one lucky pass among noisy ones does not decide."""
    padded = np.pad(np.asarray(curve), 1, mode="edge")
    return np.convolve(padded, np.full(3, 1 / 3), mode="valid")


def _passes(model: CostModel, data: RankingDataset, config: FineTuneConfig) -> Iterator[None]:
    """Trains in place, yielding after every pass over the tasks; endless."""
    start = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.Adam(_parameter_groups(model, config))
    rng = np.random.default_rng([config.seed, 1])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        while True:
            model.train()
            for batch in epoch_batches(data, config.tasks_per_batch, config.programs_per_task, rng):
                loss = _loss(model, data, batch, config.loss, rng) + config.anchor * _distance(model, start)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), config.clip)
                optimizer.step()
            yield


def _loss(model: CostModel, data: RankingDataset, batch: Batch, name: str, rng: np.random.Generator) -> Tensor:
    device = next(model.parameters()).device
    mask = torch.from_numpy(batch.mask).to(device)
    labels = torch.from_numpy(batch.labels).to(device, torch.float32)
    rows = model.describe(torch.from_numpy(data.features[batch.index]).to(device)).float()
    return model.training_loss(rows, labels, mask, get_loss(name), rng)


def _parameter_groups(model: CostModel, config: FineTuneConfig) -> list[dict[str, Any]]:
    head = [p for name, p in model.named_parameters() if name.split(".")[0] in HEAD_NAMES]
    known = {id(p) for p in head}
    encoder = [p for p in model.parameters() if id(p) not in known]
    groups = [
        {"params": encoder, "lr": config.learning_rate},
        {"params": head, "lr": config.head_learning_rate},
    ]
    return [group for group in groups if group["params"]]


def _distance(model: CostModel, start: list[Tensor]) -> Tensor:
    return torch.stack([((p - s) ** 2).sum() for p, s in zip(model.parameters(), start, strict=True)]).sum()
