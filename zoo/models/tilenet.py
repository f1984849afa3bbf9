"""TileNet, tchub's own: numbers of the loop nest, and a Gaussian process over the task's measured programs."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ..features.columns import PROGRAM_COLUMNS, WAVE_COLUMNS
from .base import MAX_DEVICES, Loss, ModelConfig, miscalibration
from .context import ContextModel
from .registry import register

# Labels of a task that an episode of the training draws from.
CONTEXT_SIZES = (2, 4, 8, 16, 32)
# Programs that an episode must have left to rank.
MIN_QUERIES = 4
# Variance of the level of a task, which no score tells: large, so that the labels alone decide it.
_LEVEL = 100.0
_JITTER = 1e-4
# Weight of the error of scores as estimates of -log(latency), beside the loss of their order: labels and scores
# must have one scale before labels can correct scores.
CALIBRATION = 0.3
# Scale of a device's column that another device opens: a few columns must tell devices apart beside 140 of the program.
# With less a base that learns a further device hardly tells it from the one before; with more, one that it does not
# know suffers.
DEVICE_SCALE = 4.0


@dataclass(frozen=True)
class TileNetConfig(ModelConfig):
    """Sizes of `TileNet`.

    Attributes:
        hidden: width of all layers; layers: how many.
        embedding: numbers in which programs are compared.
        dropout: share of the hidden numbers dropped in training.
        device_dropout: share of the batches of a training that are read without the columns of the device. Above 0,
            the network notes which devices it learns, and reads any other without them: a spec sheet outside of what
            four or five others span tells it nothing. At 0 all are read.
    """

    width: int = 160
    hidden: int = 256
    layers: int = 3
    embedding: int = 64
    dropout: float = 0.1
    device_dropout: float = 0.0


@register("tilenet", TileNetConfig, schemas=("nest-gpu", "nest-cpu"), paper="none: tchub's own")
class TileNet(ContextModel):
    """A ranker that takes the task's measured programs as context, with no gradient step.

    An MLP turns the one row of numbers of a program (`features.nest_columns`) into a score, the expected
    -log(latency) up to the level of the task, and an embedding. Measured programs of the task correct the score
    by the posterior mean of a Gaussian process over the embeddings (a neural process with a closed form: its
    answer does not depend on the order of the labels, and without labels it is the score):

        s(q) = f(q) + k(q, C) (k(C, C) + level + noise)^-1 (-log latency(C) - f(C))

    Kernel, noise, scores and embeddings are trained together, over episodes that split the programs of a task
    into labelled and unlabelled ones at random. What the pretrained part cannot know, quirks of the very task,
    a few boosted trees learn from the labels alone; how much they say is decided on labels held back in turn.

    189,510 parameters at 160 columns, 0.72 MiB in float32: fewer than TLP's.
    """

    config: TileNetConfig
    mean: Tensor
    scale: Tensor
    devices: Tensor | None

    def __init__(self, config: TileNetConfig) -> None:
        super().__init__(config)
        self.register_buffer("mean", torch.zeros(config.width))
        self.register_buffer("scale", torch.ones(config.width))
        slot = self.device_slot(torch.empty(1, 1, config.width, device="meta"))
        columns = slot.shape[1] if slot is not None and config.device_dropout else 0
        self.register_buffer("devices", torch.zeros(MAX_DEVICES, columns) if columns else None)
        layers: list[nn.Module] = []
        for i in range(config.layers):
            width = config.width if i == 0 else config.hidden
            layers += [nn.Linear(width, config.hidden), nn.GELU(), nn.Dropout(config.dropout)]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(config.hidden, 1)
        self.embed = nn.Linear(config.hidden, config.embedding)
        self.kernel = nn.Parameter(torch.tensor([1.0, 0.0, -2.0, -3.0]))  # see `_hyper`
        self.sharpness = nn.Parameter(torch.tensor(1.5))

    def prepare(self, features: Tensor) -> None:
        rows = features[:, 0].double()
        std = rows.std(dim=0, unbiased=False)
        self.mean.copy_(rows.mean(dim=0))
        # A column that never changed in training is shut: its weights are as they were at the random start.
        self.scale.copy_(torch.where(std > 1e-3, 1 / std.clamp_min(1e-3), torch.zeros_like(std)))
        self._note_devices(features)

    def device_slot(self, x: Tensor) -> Tensor | None:
        own = self.config.hardware and self.config.width > PROGRAM_COLUMNS
        return x[:, 0, PROGRAM_COLUMNS:] if own else None

    def admit(self, features: Tensor) -> None:
        """Open the columns of the device where this device's differ from those known.

        They were shut because one device has one value in each, and that value still adds nothing.
        """
        apart = (features[:, 0].double() - self.mean).abs().amax(dim=0)
        self.scale.masked_fill_((self.scale == 0) & (apart > 1e-3), DEVICE_SCALE)
        self._note_devices(features)

    def _note_devices(self, features: Tensor) -> None:
        """Keep the descriptions of the devices of programs that are learnt, where any are kept."""
        slot = self.device_slot(features)
        if self.devices is None or slot is None:
            return
        met = slot.to(self.devices).unique(dim=0)
        new, known = (rows[rows.any(dim=1)] for rows in (met[~_among(met, self.devices)], self.devices))
        kept = torch.cat([new, known])[:MAX_DEVICES]
        self.devices[: len(kept)] = kept

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self._hidden(x)).squeeze(-1)

    def describe(self, x: Tensor) -> Tensor:
        """Return score and embedding of each program, (batch, 1 + embedding)."""
        h = self._hidden(x)
        embedding = functional.layer_norm(self.embed(h), (self.config.embedding,))
        return torch.cat([self.head(h), embedding], dim=1)

    def _hidden(self, x: Tensor) -> Tensor:
        rows = (x[:, 0].to(self.mean.dtype) - self.mean) * self.scale
        return self.body(rows if self.devices is None else self._mask_device(rows, x, self.devices))

    def _mask_device(self, rows: Tensor, x: Tensor, devices: Tensor) -> Tensor:
        """Return scaled rows, the device's columns at their mean for a device not learnt, and in some batches for all.

        For a program without a device so are the columns that count a device's units: their zeros would mean that it
        runs on all of them at once.
        """
        slot = self.device_slot(x)
        assert slot is not None  # or no device were noted
        has_device = slot.any(dim=1)  # rows of `devices` that are still free are zeros as well
        known = has_device & _among(slot.to(devices.dtype), devices)
        if self.training and torch.rand(()) < self.config.device_dropout:
            known = torch.zeros_like(known)
        columns = devices.shape[1]
        program, waves, device = rows.split([rows.shape[1] - WAVE_COLUMNS - columns, WAVE_COLUMNS, columns], dim=1)
        return torch.cat([program, waves * has_device[:, None], device * known[:, None]], dim=1)

    def posterior(self, scores: Tensor, embeddings: Tensor, measured: Tensor) -> Tensor:
        """Return the scores (tasks, programs), corrected by the measured ones; a task's level is that of these.

        Args:
            scores: (tasks, programs); embeddings: (tasks, programs, embedding), both of `describe`.
            measured: (tasks, n) -log(latency) of the first n programs of each task, in any unit of time.
        """
        n = measured.shape[1]
        context = embeddings[:, :n]
        level, weights = self.condition(scores[:, :n], context, measured)
        return self.correct(scores, embeddings, context, level, weights)

    def condition(self, scores: Tensor, context: Tensor, measured: Tensor) -> tuple[Tensor, Tensor]:
        noise, eye = self._hyper()[3] + _JITTER, torch.eye(measured.shape[1], dtype=scores.dtype, device=scores.device)
        gram = self._similarity(context, context) + _LEVEL + noise * eye
        level = (measured - scores).mean(dim=1, keepdim=True)
        error = (measured - scores - level)[:, :, None]
        return level, torch.cholesky_solve(error, torch.linalg.cholesky(gram))

    def correct(self, scores: Tensor, embeddings: Tensor, context: Tensor, level: Tensor, weights: Tensor) -> Tensor:
        return scores + level + ((self._similarity(embeddings, context) + _LEVEL) @ weights).squeeze(-1)

    def training_loss(self, rows: Tensor, labels: Tensor, mask: Tensor, loss: Loss, rng: np.random.Generator) -> Tensor:
        """Return the loss without labels, plus that of an episode with the first programs of each group as context."""
        sharpness = self.sharpness.exp()
        scores = torch.zeros_like(labels).masked_scatter(mask, rows[:, 0])
        total = loss(sharpness * scores, labels, mask) + CALIBRATION * miscalibration(scores, labels, mask)
        n = int(rng.choice(CONTEXT_SIZES))
        enough = mask.sum(dim=1) >= n + MIN_QUERIES
        if not enough.any():
            return total
        embeddings = rows.new_zeros(*mask.shape, self.config.embedding).masked_scatter(mask[:, :, None], rows[:, 1:])
        measured = labels[enough, :n].log()
        corrected = self.posterior(scores[enough], embeddings[enough], measured)
        rest = corrected[:, n:], labels[enough, n:], mask[enough, n:]
        return total + loss(sharpness * rest[0], *rest[1:]) + CALIBRATION * miscalibration(*rest)

    def _similarity(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the kernel (tasks, n, m) of embeddings (tasks, n, d) and (tasks, m, d): Gaussian plus linear."""
        (width, height, slope, _), d = self._hyper(), a.shape[-1]
        near = torch.exp(-0.5 * width * torch.cdist(a, b).square() / d)
        return height * near + slope * (a @ b.transpose(-1, -2)) / d

    def _hyper(self) -> Tensor:
        """Return inverse squared length, height, slope of the linear part, and noise: (4,), all above 0."""
        bound = math.log(1e4)
        return self.kernel.clamp(-bound, bound).exp()


def _among(rows: Tensor, known: Tensor) -> Tensor:
    """Return (n,) bool: which rows (n, columns) are equal to one of those known (k, columns)."""
    return (rows[:, None] == known).all(dim=2).any(dim=1)
