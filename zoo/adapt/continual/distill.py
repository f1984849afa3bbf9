"""The second phase: the base learns the device from its labels and its column (papers: TCL, equations 9 to 11)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...models import CostModel, ModelConfig, Progressive
from ...training import RankingDataset, TrainResult, get_loss, train
from ...training.batches import epoch_batches
from .config import ContinualConfig
from .learn import check_features


@dataclass(frozen=True)
class GateSummary:
    """What the gate was decided on: the column's rank loss of each batch of the data set (equation 11).

    Attributes:
        batches: how many; mean, least, most: of the loss.
        open: mean gate, 0 to 1: the share of the column's word that the base heard. The extremes are those of the
            same batches, so it tells nothing of how good the column is: of one batch it is 1, of two 0.5.
    """

    batches: int
    mean: float
    least: float
    most: float
    open: float


@dataclass(frozen=True)
class Distilled:
    """What the phase came to: its training, and the gate."""

    training: TrainResult
    gate: GateSummary


def gate(loss: Tensor, least: float, most: float) -> Tensor:
    """Equation 10: 1 for the batch that the teacher ranks best, 0 for the one it ranks worst.

    Without a spread no batch is worse than another, and the gate is open.
    """
    if not most > least:
        return torch.ones_like(loss)
    return (1 - (loss - least) / (most - least)).clamp(0, 1)


def distill(
    model: Progressive,
    data: RankingDataset,
    val: RankingDataset | None = None,
    config: ContinualConfig | None = None,
    seed: int = 0,
    folder: Path | None = None,
    on_epoch: Callable[[dict[str, float]], None] | None = None,
) -> Distilled:
    """Trains the base in place; afterwards it answers, and column and laterals are as they were.

    The teacher is the column beside the base as it is before the phase: laterals read the base, so that a column
    beside a base that moves would say something else each step. Paper and code differ in one more place: the
    extremes of equation 11 are those of the first epoch's batches, and later epochs, which are cut anew, keep them.

    Args:
        model: its column has learnt the device; its Fisher diagonal tells what earlier devices need.
        data, val, seed, folder, on_epoch: as in `learn`; `val` is watched, and chooses nothing.
        config: the settings; `strength = 0` forgets freely.

    Raises:
        SourceMismatchError, DivergedError, ResumeError: as `learn`.
    """
    check_features(model, data, val)
    config = config or ContinualConfig()
    teacher = copy.deepcopy(model).learning().eval().requires_grad_(False)
    losses = _teacher_losses(teacher, data, config, seed)
    rehearsal = _rehearsal(teacher, data, config)
    lesson = Lesson(model.distilling().kb, teacher, losses, config, model.fisher_diagonal(), rehearsal)
    result = train(lesson, data, val, config.distilling(), seed, folder, on_epoch)
    gates = gate(torch.from_numpy(losses), lesson.least, lesson.most) if config.gated else torch.ones(1)
    summary = GateSummary(len(losses), float(losses.mean()), lesson.least, lesson.most, float(gates.mean()))
    model.eval()
    return Distilled(result, summary)


@dataclass(frozen=True)
class Rehearsal:
    """The base as it was, and the devices that it knew: what it said of any program on them can be asked again.

    Learning without forgetting (Li and Hoiem 2016), where the input tells which device is meant: the new device's
    programs are as good as the old ones', which are gone, and no device need be forgotten for another.
    """

    base: CostModel
    devices: Tensor

    def ask(self, now: CostModel, x: Tensor) -> Tensor:
        """What was said of these programs and is said now on a known device, drawn at random for all of them.

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
        told = now.describe(there)
        now.train(training)
        moved = ((told - was).square() / was.var(dim=0, unbiased=False).clamp_min(1e-6))[:, 1:]
        return torch.stack([was[:, 0], told[:, 0], moved.mean(dim=1) if moved.shape[1] else 0 * told[:, 0]], dim=1)


def drift(asked: Tensor, mask: Tensor) -> Tensor:
    """How far a base has moved by what `Rehearsal.ask` found, (n, 3), for the programs where `mask` is True.

    Of scores only the differences within a group count, in units of their variance, so that a task whose programs
    are all alike is kept in order too.
    """
    was, now = (torch.zeros(mask.shape, device=asked.device).masked_scatter(mask, asked[:, i]) for i in (0, 1))
    count = mask.sum(dim=1, keepdim=True).clamp_min(1)
    was, now = ((s - s.sum(dim=1, keepdim=True) / count) * mask for s in (was, now))
    unit = (was.square().sum(dim=1, keepdim=True) / count).clamp_min(1e-6)
    return ((now - was).square() / unit)[mask].mean() + asked[:, 2].mean()


@dataclass(frozen=True)
class LessonConfig(ModelConfig):
    """What a saved state of the phase must have in common with the run that continues it."""

    arch: str = ""
    beta: float = 0.5
    gated: bool = True
    strength: float = 0.0
    rehearsal: float = 0.0
    least: float = 0.0
    most: float = 0.0


class Lesson(CostModel):
    """The base as a model of the training loop, whose loss is equation 9.

    `describe` puts the teacher's score beside what the base says of a program; the loss takes it off again. Teacher,
    old weights and Fisher diagonal never change, so they are no part of the state.
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
        self.least, self.most = (float(losses.min()), float(losses.max())) if len(losses) else (0.0, 0.0)
        terms = (config.beta, config.gated, config.strength, config.rehearsal, self.least, self.most)
        super().__init__(LessonConfig(base.config.width, base.config.hardware, base.arch, *terms))
        self.base = base
        self._terms = config
        self._teacher = (teacher,)  # in a tuple, or it were a submodule
        self._rehearsal = rehearsal
        self._old = {name: (fisher[name], p.detach().clone()) for name, p in base.named_parameters()}

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x)

    def describe(self, x: Tensor) -> Tensor:
        """What the base says of each program, (batch, columns), the teacher's score, and what `Rehearsal.ask` found."""
        with torch.no_grad():
            told = self._teacher[0](x)
        rows = [self.base.describe(x), told[:, None]]
        return torch.cat([*rows, self._rehearsal.ask(self.base, x)] if self._rehearsal else rows, dim=1)

    def training_loss(
        self,
        rows: Tensor,
        labels: Tensor,
        mask: Tensor,
        loss: Callable[[Tensor, Tensor, Tensor], Tensor],
        rng: np.random.Generator,
    ) -> Tensor:
        asked, rows = (rows[:, -3:], rows[:, :-3]) if self._rehearsal else (None, rows)
        own, told = rows[:, :-1], torch.zeros_like(labels).masked_scatter(mask, rows[:, -1])
        beta, open_ = self._terms.beta, torch.ones((), device=labels.device)
        if self._terms.gated:
            open_ = gate(loss(told, labels, mask), self.least, self.most)
        from_labels = self.base.training_loss(own, labels, mask, loss, rng)
        from_teacher = self.base.training_loss(own, reordered(labels, told, mask), mask, loss, rng)
        total = beta * from_labels + (1 - beta) * open_ * from_teacher
        if asked is not None:
            total = total + self._terms.rehearsal * drift(asked, mask)
        return total + self.penalty() if self._terms.strength else total

    def penalty(self) -> Tensor:
        """Elastic weight consolidation: lambda / 2 times the worth of each weight times its way squared."""
        ways = [
            (worth * (p - old).square()).sum()
            for p, (worth, old) in zip(self.base.parameters(), self._old.values(), strict=True)
        ]
        return self._terms.strength / 2 * torch.stack(ways).sum()


def _rehearsal(teacher: Progressive, data: RankingDataset, config: ContinualConfig) -> Rehearsal | None:
    """Of the devices known but the one to be learnt: of that one the new labels say more than what was said."""
    devices, slot = teacher.known_devices(), teacher.device_slot(torch.from_numpy(data.features[:1]))
    if not config.rehearsal or devices is None or slot is None:
        return None
    others = devices[(devices != slot.to(devices)).any(dim=1)]
    return Rehearsal(teacher.kb, others) if len(others) else None


def reordered(labels: Tensor, scores: Tensor, mask: Tensor) -> Tensor:
    """The labels of each group in the order of some scores: the best label for the best score, (groups, programs).

    A teacher's scores have any scale, and losses want labels in (0, 1]; only the teacher's order counts this way.
    """
    places = scores.masked_fill(~mask, -torch.inf).argsort(dim=1, descending=True, stable=True)
    best_first = labels.masked_fill(~mask, 0).sort(dim=1, descending=True).values
    return torch.zeros_like(labels).scatter(1, places, best_first).masked_fill(~mask, 0)


def _teacher_losses(teacher: CostModel, data: RankingDataset, config: ContinualConfig, seed: int) -> np.ndarray:
    """(J,) of float64: the teacher's rank loss of each batch of the first epoch."""
    scores = torch.from_numpy(teacher.score(data.features)).float()
    batches = epoch_batches(data, config.groups_per_batch, config.programs_per_group, np.random.default_rng([seed, 0]))
    loss, found = get_loss(config.loss), []
    for batch in batches:
        labels, mask = torch.from_numpy(batch.labels), torch.from_numpy(batch.mask)
        told = torch.zeros_like(labels).masked_scatter(mask, scores[torch.from_numpy(batch.index)])
        found.append(float(loss(told, labels, mask)))
    return np.array(found)
