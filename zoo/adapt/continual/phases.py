"""The second phase that learns a device (papers: TCL, section 6), and the Fisher diagonal that protects earlier ones.

In the first phase the column learns a device, and the base stays as it is (equation 8): a plain training. In the second
the base learns the device from its labels and from the column (equations 9 to 11).
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...models import CostModel, ModelConfig, ProgressiveNetwork
from ...models.base import Loss
from ...training import RankingDataset, TrainResult, get_loss, train
from ...training.dataset import epoch_batches
from ..fine_tune import batch_loss
from .config import ContinualConfig


def gate(loss: Tensor, least: float, most: float) -> Tensor:
    """Return the gate of equation 10: 1 for the batch that the teacher ranks best, 0 for the worst."""
    return (1 - (loss - least) / (most - least)).clamp(0, 1) if most > least else torch.ones_like(loss)


def distill(
    model: ProgressiveNetwork,
    data: RankingDataset,
    val: RankingDataset | None,
    config: ContinualConfig,
    seed: int = 0,
    folder: Path | None = None,
    on_epoch: Callable[[dict[str, float]], None] | None = None,
) -> tuple[TrainResult, float]:
    """Train the base in place; afterwards it answers, and column and laterals are as they were.

    The teacher is the column beside the base as it is before the phase: laterals read the base, so that a column
    beside a base that moves would give other scores each step. Paper and code differ in one more place: the
    extremes of equation 11 are those of the first epoch's batches, and later epochs, which are cut anew, keep them.

    Arguments and errors are those of `training.train`; `val` is watched, and chooses nothing.

    Returns:
        The training, and the mean gate, 0 to 1: the share of the column's order that the base learnt. The extremes are
        those of the same batches, so it says nothing of how good the column is.
    """
    teacher = copy.deepcopy(model).learning().eval().requires_grad_(False)
    losses = _teacher_losses(teacher, data, config, seed)
    rehearsal = _rehearsal(teacher, data, config)
    student = DistillationModel(model.distilling().kb, teacher, losses, config, model.fisher_diagonal(), rehearsal)
    result = train(student, data, val, config.distilling(), seed, folder, on_epoch)
    model.eval()
    return result, float(gate(torch.from_numpy(losses), student.least, student.most).mean())


@dataclass(frozen=True)
class Rehearsal:
    """The base before the phase, and the devices that it knew: it can score any program on them again.

    Learning without forgetting (Li and Hoiem 2016), where the input tells which device is meant.
    """

    base: CostModel
    devices: Tensor

    def compare(self, now: CostModel, x: Tensor) -> Tensor:
        """Score these programs then and now on a known device, drawn at random for all of them.

        Returns:
            (batch, 3): the score then and now, and how far the other columns of `describe` have moved: their mean
            squared difference in units of their variance.
        """
        there = x.clone()
        slot = now.device_slot(there)
        assert slot is not None  # or no device were known
        slot.copy_(self.devices[torch.randint(len(self.devices), (1,))].expand_as(slot))
        with torch.no_grad():
            was = self.base.describe(there)
        training = now.training
        now.eval()  # what is dropped at random is no drift
        after = now.describe(there)
        now.train(training)
        moved = ((after - was).square() / was.var(dim=0, unbiased=False).clamp_min(1e-6))[:, 1:]
        return torch.stack([was[:, 0], after[:, 0], moved.mean(dim=1) if moved.shape[1] else 0 * after[:, 0]], dim=1)


def drift(rehearsed: Tensor, mask: Tensor) -> Tensor:
    """Return how far a base has moved, by the result (n, 3) of `Rehearsal.compare` for the programs of `mask`.

    Of scores only the differences within a group count, in units of their variance, so that a task whose programs
    are all alike is kept in order too.
    """
    was, now = (torch.zeros(mask.shape, device=rehearsed.device).masked_scatter(mask, rehearsed[:, i]) for i in (0, 1))
    count = mask.sum(dim=1, keepdim=True).clamp_min(1)
    was, now = ((s - s.sum(dim=1, keepdim=True) / count) * mask for s in (was, now))
    unit = (was.square().sum(dim=1, keepdim=True) / count).clamp_min(1e-6)
    return ((now - was).square() / unit)[mask].mean() + rehearsed[:, 2].mean()


class DistillationModel(CostModel):
    """The base as a model of the training loop, whose loss is equation 9.

    `describe` puts the teacher's score beside the base's description of a program; the loss takes it off again.
    Teacher, old weights and Fisher diagonal never change, so they are no part of the state.
    """

    def __init__(
        self,
        base: CostModel,
        teacher: CostModel,
        losses: np.ndarray,
        config: ContinualConfig,
        fisher: dict[str, Tensor],
        rehearsal: Rehearsal | None = None,
    ) -> None:
        """`losses`: the teacher's rank loss of each batch, (J,); `fisher`: by the base's names of weights."""
        super().__init__(ModelConfig(base.config.width, base.config.hardware))  # heads of the base are its own
        self.least, self.most = (float(losses.min()), float(losses.max())) if len(losses) else (0.0, 0.0)
        self.base = base
        self._terms = config
        self._teacher = (teacher,)  # in a tuple, or it were a submodule
        self._rehearsal = rehearsal
        self._old = {name: (fisher[name], p.detach().clone()) for name, p in base.named_parameters()}

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x)

    def describe(self, x: Tensor) -> Tensor:
        """Describe each program by the base, (batch, columns), add the teacher's score and `Rehearsal.compare`."""
        with torch.no_grad():
            taught = self._teacher[0](x)
        rows = [self.base.describe(x), taught[:, None]]
        return torch.cat([*rows, self._rehearsal.compare(self.base, x)] if self._rehearsal else rows, dim=1)

    def training_loss(self, rows: Tensor, labels: Tensor, mask: Tensor, loss: Loss, rng: np.random.Generator) -> Tensor:
        rehearsed, rows = (rows[:, -3:], rows[:, :-3]) if self._rehearsal else (None, rows)
        own, taught = rows[:, :-1], torch.zeros_like(labels).masked_scatter(mask, rows[:, -1])
        beta, trust = self._terms.beta, gate(loss(taught, labels, mask), self.least, self.most)
        from_labels = self.base.training_loss(own, labels, mask, loss, rng)
        from_teacher = self.base.training_loss(own, reordered(labels, taught, mask), mask, loss, rng)
        total = beta * from_labels + (1 - beta) * trust * from_teacher
        if rehearsed is not None:
            total = total + self._terms.rehearsal * drift(rehearsed, mask)
        return total + self.penalty() if self._terms.strength else total

    def bound_loss(self, rows: Tensor, bounds: Tensor) -> Tensor:
        return self.base.bound_loss(rows[:, : -4 if self._rehearsal else -1], bounds)

    def penalty(self) -> Tensor:
        """Return the penalty of elastic weight consolidation: lambda / 2 * importance * distance squared."""
        distances = [
            (importance * (p - old).square()).sum()
            for p, (importance, old) in zip(self.base.parameters(), self._old.values(), strict=True)
        ]
        return self._terms.strength / 2 * torch.stack(distances).sum()


def _rehearsal(teacher: ProgressiveNetwork, data: RankingDataset, config: ContinualConfig) -> Rehearsal | None:
    """Rehearse the known devices but the one to be learnt: its new labels say more than the earlier scores."""
    devices, slot = teacher.known_devices(), teacher.device_slot(torch.from_numpy(data.features[:1]))
    if not config.rehearsal or devices is None or slot is None:
        return None
    others = devices[(devices != slot.to(devices)).any(dim=1)]
    return Rehearsal(teacher.kb, others) if len(others) else None


def reordered(labels: Tensor, scores: Tensor, mask: Tensor) -> Tensor:
    """Return the labels of each group in the order of some scores, which have any scale."""
    ranks = scores.masked_fill(~mask, -torch.inf).argsort(dim=1, descending=True, stable=True)
    best_first = labels.masked_fill(~mask, 0).sort(dim=1, descending=True).values
    return torch.zeros_like(labels).scatter(1, ranks, best_first).masked_fill(~mask, 0)


def _teacher_losses(teacher: CostModel, data: RankingDataset, config: ContinualConfig, seed: int) -> np.ndarray:
    """Return the teacher's rank loss of each batch of the first epoch, (J,) of float64."""
    scores = torch.from_numpy(teacher.score(data.features)).float()
    recipe, rng = config.recipe, np.random.default_rng([seed, 0])
    batches = epoch_batches(data, recipe.groups_per_batch, recipe.programs_per_group, rng)
    loss, losses = get_loss(recipe.loss), []
    for batch in batches:
        labels, mask = torch.from_numpy(batch.labels), torch.from_numpy(batch.mask)
        taught = torch.zeros_like(labels).masked_scatter(mask, scores[torch.from_numpy(batch.index)])
        losses.append(float(loss(taught, labels, mask)))
    return np.array(losses)


def fisher_diagonal(
    model: CostModel, data: RankingDataset, config: ContinualConfig, seed: int = 0
) -> dict[str, Tensor]:
    """Return the mean squared gradient of the rank loss over groups of one task each, by the name of the weight.

    Each number says how much the model, which is unchanged, depends on that weight (Kirkpatrick et al. 2017).
    """
    weights = {name: p for name, p in model.named_parameters() if p.requires_grad}
    totals = {name: torch.zeros_like(p, requires_grad=False) for name, p in weights.items()}
    was_training, count = model.training, 0
    model.eval()
    groups = epoch_batches(data, 1, config.recipe.programs_per_group, np.random.default_rng([seed, 2]))
    for batch in islice(groups, config.fisher_groups):
        loss = batch_loss(model, data, batch, config.recipe.loss, np.random.default_rng([seed, 3, count]))
        gradients = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
        for name, gradient in zip(weights, gradients, strict=True):
            if gradient is not None:
                totals[name] += gradient.square()
        count += 1
    model.train(was_training)
    return {name: total / max(count, 1) for name, total in totals.items()}


def remember(model: ProgressiveNetwork, data: RankingDataset, config: ContinualConfig, seed: int = 0) -> None:
    """Add a device's Fisher diagonal to the base's, and note the device; afterwards the base answers."""
    model.distilling()
    importance = fisher_diagonal(model.kb, data, config, seed)
    for name, total in model.fisher_diagonal().items():
        total.add_(importance[name])
    model.note_device(torch.from_numpy(data.features[:1]))
