"""The base of all cost models: a module with a config, from a padded batch of matrices to scores."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

# Of scores, labels and mask, all (groups, programs): one number (see `training.losses`).
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
# Programs that are scored at a time, which bounds the memory.
BATCH = 1024
# Devices of which a network keeps the description; the oldest goes first.
MAX_DEVICES = 32


@dataclass(frozen=True)
class ModelConfig:
    """The input of an architecture; each adds its own sizes.

    Attributes:
        width: columns of the feature matrix; must equal the feature schema's.
        hardware: the last row of the matrix describes the device (TCL table 1).
    """

    width: int = 22
    hardware: bool = True

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form, from which `create(arch, **config)` makes the same architecture."""
        return asdict(self)


class CostModel(nn.Module, ABC):
    """A model that ranks the programs of a task.

    Subclasses are registered, take one config and implement `forward`. Rows of zeros are padding: `row_mask`
    finds them, and a program must score the same however much padding follows it.
    """

    arch: str = ""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Score a batch (batch, rows, width), rows of zeros being padding: (batch,), higher means faster.

        Scores compare within a task.
        """

    def forward_heads(self, x: Tensor) -> Tensor:
        """Return the scores of all heads, (batch, heads); head 0 is `forward`'s, most often the only one."""
        return self(x)[:, None]

    def describe(self, x: Tensor) -> Tensor:
        """Return what the training reads of each program, (batch, columns): the score first, most often alone."""
        return self(x)[:, None]

    def describe_heads(self, x: Tensor, heads: Tensor) -> Tensor:
        """Return `describe` by the head of each program, numbers (batch,) of int64: (batch, columns)."""
        return self.forward_heads(x).gather(1, heads[:, None])

    def training_loss(self, rows: Tensor, labels: Tensor, mask: Tensor, loss: Loss, rng: np.random.Generator) -> Tensor:
        """Return the loss of a batch of groups, one number.

        Args:
            rows: of `describe`, (n, columns): the programs where `mask` is True, in its order.
            labels: (groups, programs), 0 at padding; mask: (groups, programs), False at padding.
            loss: of scores, labels and mask (see `training.losses`).
            rng: for models whose loss draws; the same in all processes of a run.
        """
        return loss(torch.zeros_like(labels).masked_scatter(mask, rows[:, 0]), labels, mask)

    def bound_loss(self, rows: Tensor, bounds: Tensor) -> Tensor:
        """Return the loss of what the model says of a program besides its score, one number that is added to the other.

        0 for a model that says nothing else.

        Args:
            rows: of `describe`, (n, columns).
            bounds: (n, 2), the programs' memory-bound and core-bound scores, NaN where they are not known.
        """
        return rows.new_zeros(())

    def prepare(self, features: Tensor) -> None:
        """Fit scales and the like to the whole training set (N, rows, width) before the first epoch."""

    def device_slot(self, x: Tensor) -> Tensor | None:
        """Return the part of programs (batch, rows, width) that describes the device, a view of (batch, columns).

        None for a model that reads nothing of it.
        """
        return x[:, -1] if self.config.hardware else None

    def admit(self, features: Tensor) -> None:
        """Open columns that were constant so far to another device's programs (N, rows, width); known scores stay."""

    def score(self, features: np.ndarray) -> np.ndarray:
        """Score programs (N, rows, width) without gradients, in evaluation mode: (N,) of float64, higher means faster.

        PyTorch runs it eagerly: of the time to score a live candidate an MLP takes a tenth, and int8, torch.compile
        and ONNX Runtime gain too little for what they cost.
        """
        return self._infer(self, features, ())

    def bounds(self, features: np.ndarray) -> np.ndarray | None:
        """Return the memory-bound and core-bound scores of programs, (N, 2) of float64 in [0, 1].

        None from a model that does not estimate them.
        """
        return None

    def _infer(self, call: Callable[[Tensor], Tensor], features: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Return what `call` gives for programs, a batch at a time in evaluation mode: (N, *shape) of float64."""
        weight, was_training = next(self.parameters()), self.training
        self.eval()
        results = np.empty((len(features), *shape))
        with torch.inference_mode():
            for start in range(0, len(features), BATCH):
                x = torch.from_numpy(features[start : start + BATCH]).to(weight.device, weight.dtype)
                results[start : start + BATCH] = call(x).double().cpu().numpy()
        self.train(was_training)
        return results

    def parameter_count(self) -> int:
        """Return the number of trained numbers."""
        return sum(p.numel() for p in self.parameters())


def miscalibration(scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """Return the mean Huber loss of scores as estimates of log(label), the level of each group left out; one number.

    All are (groups, programs), as in a `Loss`.
    """
    wanted = labels.clamp_min(torch.finfo(labels.dtype).tiny).log()
    error = (scores - wanted).masked_fill(~mask, 0)
    level = error.sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp_min(1)
    return functional.huber_loss(error[mask], level.expand_as(error)[mask])


def row_mask(x: Tensor) -> Tensor:
    """Return (batch, rows) of bool for x of (batch, rows, width): True where a row is not all zeros."""
    return (x != 0).any(dim=-1)


def hardware_first(x: Tensor) -> Tensor:
    """Move the device's row of (batch, rows, width) from the end to the front.

    A causal model then reads the device before the first primitive, and padding is last and reaches nothing.
    """
    return x.roll(1, dims=1)


def drop_padding(x: Tensor) -> Tensor:
    """Cut the rows that are padding in all programs off the end: (batch, rows or fewer, width).

    A CPU program of MetaSchedule fills about 15 of its 25 rows, so this saves a third of the time.
    """
    filled = row_mask(x).any(dim=0).nonzero()
    return x[:, : int(filled[-1]) + 1] if len(filled) else x[:, :1]
