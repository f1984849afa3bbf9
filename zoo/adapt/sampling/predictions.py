"""`PoolPredictions`: scores, embeddings, uncertainty and expected cost of a pool, each computed when first used.

The uncertainty is that of a Gaussian posterior over the weights of the network's last linear layer, by Bayesian linear
regression on the layer's inputs (Bishop 2006, section 3.5; Daxberger et al. 2021). Only differences within a task are
learnt and predicted, so the level of every task is taken out of inputs and labels. Prior and noise are those under
which the labels are most probable, except that the prior is as wide as the noise at least: few labels that fit nothing
say that these labels fit nothing, not that there is nothing to learn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np

from ..errors import AdaptError

if TYPE_CHECKING:
    from torch import Tensor

    from ...models import CostModel

# A fit to few labels may predict anything: the slowest program known costs this many times the best guess at most.
_SLOWEST = 10.0
# Directions kept of the embeddings: those of the most variance. More cost time and hold noise.
_DIRECTIONS = 48
# Programs that determine the directions.
_SAMPLE = 20_000
_ROUNDS = 30
_TINY = 1e-9


@dataclass(frozen=True)
class MeasuringCost:
    """The cost of measuring one program: seconds to build it, and how often it runs."""

    build: float = 1.0
    runs: float = 10.0

    def seconds(self, latency: np.ndarray) -> np.ndarray:
        """Return the cost of programs of these latencies in seconds; above 0, since gains are divided by it."""
        return np.maximum(self.build + self.runs * latency, np.finfo(float).eps)


@dataclass(frozen=True)
class LastLayerPosterior:
    """The posterior over the last layer's weights given the labels, in the coordinates of the directions kept.

    `inputs` (N, p) are relative to the mean of the task's programs; `noise` is the variance of a label.
    """

    inputs: np.ndarray
    covariance: np.ndarray
    noise: float


@dataclass
class PoolPredictions:
    """The predictions of a model for a pool of N programs, given labels of m of them.

    Attributes:
        scores: (N,) of the model; higher is faster.
        labeled: (m,) indices of the pool; latency: (m,) their seconds, NaN where a program failed.
        embed: computes `embeddings`.
        task: (N,) task of each program, one unless given; scores and latencies compare within a task alone.
        features: (N, rows, width) of the pool, None where nobody needs them; cost: of one measurement.
    """

    scores: np.ndarray
    labeled: Sequence[int] | np.ndarray
    latency: np.ndarray
    embed: Callable[[], np.ndarray]
    task: np.ndarray | None = None
    features: np.ndarray | None = None
    cost: MeasuringCost | None = None

    def __post_init__(self) -> None:
        self.scores, self.latency = (np.asarray(a, dtype=np.float64) for a in (self.scores, self.latency))
        self.labeled = np.asarray(self.labeled, dtype=np.int64)
        self.group = np.zeros(len(self.scores), np.int64) if self.task is None else np.asarray(self.task, np.int64)

    @classmethod
    def of(
        cls,
        model: CostModel,
        features: np.ndarray,
        labeled: Sequence[int] | np.ndarray,
        latency: np.ndarray,
        *,
        task: np.ndarray | None = None,
        cost: MeasuringCost | None = None,
    ) -> PoolPredictions:
        """Score a pool with any network of the zoo; the arguments are as those of the class."""
        embed = partial(last_layer_inputs, model, features)
        return cls(model.score(features), labeled, latency, embed, task=task, features=features, cost=cost)

    @cached_property
    def embeddings(self) -> np.ndarray:
        """(N, d) float32: inputs of the model's last linear layer, summed over a program's rows where it has many."""
        return self.embed()

    @cached_property
    def last_layer(self) -> LastLayerPosterior:
        """The posterior over the weights of the last layer."""
        return _fit_last_layer(self.embeddings, self.group, *self._known)

    def seconds(self) -> np.ndarray:
        """Return the expected seconds to measure each program, (N,): log latency falls with the score by one slope."""
        (known, seconds), cost = self._known, self.cost or MeasuringCost()
        if not len(known):
            return cost.seconds(np.zeros_like(self.scores))
        tasks = int(self.group.max()) + 1
        logs, score, task = np.log(seconds), self.scores[known], self.group[known]
        logs_mean, score_mean = _task_means(logs, task, tasks), _task_means(score, task, tasks)
        spread = score - score_mean[task]
        slope = min(0.0, float(spread @ logs) / max(float(spread @ spread), 1e-12))
        seen = np.bincount(task, minlength=tasks) > 0
        level = np.where(seen, logs_mean - slope * score_mean, (logs - slope * score).mean())
        guess = level[self.group] + slope * self.scores
        most = np.log(_SLOWEST)
        return cost.seconds(np.exp(np.clip(guess, logs.min() - most, logs.max() + most)))

    @cached_property
    def _known(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the indices of the labeled programs that ran, and their seconds."""
        ran = np.isfinite(self.latency) & (self.latency > 0)
        return np.asarray(self.labeled)[ran], self.latency[ran]


def _fit_last_layer(
    embeddings: np.ndarray, task: np.ndarray, known: np.ndarray, latency: np.ndarray
) -> LastLayerPosterior:
    """Fit the posterior to m labels at `known`, finite and above 0. O(N d p).

    Without two labels in one task the posterior is the prior, with noise as large as the signal.
    """
    inputs = _directions(embeddings, task)
    tasks = int(task.max()) + 1 if len(task) else 0
    own = task[known]
    z = inputs[known].astype(np.float64)
    z -= _task_means(z, own, tasks)[own]
    y = -np.log(latency)
    y -= _task_means(y, own, tasks)[own]
    prior, noise = _evidence(z, y, len(known) - len(np.unique(own)))
    precision = np.eye(inputs.shape[1]) / prior + z.T @ z / noise
    return LastLayerPosterior(inputs, np.linalg.inv(precision), noise)


def _task_means(values: np.ndarray, task: np.ndarray, tasks: int) -> np.ndarray:
    """Return the mean of the values (n,) or (n, p) of each task, (T,) or (T, p); 0 for a task without any."""
    counts = np.bincount(task, minlength=tasks).clip(1)
    if values.ndim == 1:
        return np.bincount(task, values, tasks) / counts
    return np.stack([np.bincount(task, column, tasks) for column in values.T], axis=1) / counts[:, None]


def _directions(embeddings: np.ndarray, task: np.ndarray) -> np.ndarray:
    """Project embeddings, less their task's mean, on their main directions, of unit mean square: (N, p) float32."""
    if not len(task):
        return np.zeros((0, 1), np.float32)
    centred = embeddings - _task_means(embeddings, task, int(task.max()) + 1)[task].astype(np.float32)
    step = -(-len(centred) // _SAMPLE)
    some = centred[::step].astype(np.float64)
    values, vectors = np.linalg.eigh(some.T @ some / len(some))
    kept = np.argsort(values)[::-1][:_DIRECTIONS]
    kept = kept[values[kept] > _TINY * max(values.max(), _TINY)]
    if not len(kept):
        return np.zeros((len(centred), 1), np.float32)
    scale = np.sqrt(values[kept].sum())
    return centred @ (vectors[:, kept] / scale).astype(np.float32)


def _evidence(z: np.ndarray, y: np.ndarray, degrees: int) -> tuple[float, float]:
    """Fit the variances of prior and noise by MacKay's fixed point; 1 and 1 without anything to learn."""
    power = float(y @ y)
    if degrees < 1 or power < _TINY:
        return 1.0, 1.0
    eigen, vectors = np.linalg.eigh(z.T @ z)
    eigen, projected = np.maximum(eigen, 0), vectors.T @ (z.T @ y)
    prior, noise = power / degrees, 0.5 * power / degrees
    for _ in range(_ROUNDS):
        weights = projected / (eigen + noise / prior)
        used = float((eigen / (eigen + noise / prior)).sum())
        error = max(power - 2 * float(weights @ projected) + float((eigen * weights**2).sum()), 0.0)
        prior = max(float(weights @ weights) / max(used, _TINY), _TINY)
        # With as many directions as labels nothing is left to estimate the noise: take a hundredth of the signal.
        noise = max(error / max(degrees - used, 1.0), 0.01 * power / degrees)
    return max(prior, noise), noise


def last_layer_inputs(model: CostModel, features: np.ndarray) -> np.ndarray:
    """Return the inputs of the layer that computes a program's score, in evaluation mode: (N, d) float32.

    They are summed over rows that a network scores one by one, and lie side by side for the members of an ensemble.

    Raises:
        AdaptError: the score is not the output of a linear layer.
    """
    import torch
    from torch import nn

    from ...models import Ensemble
    from ...models.base import BATCH

    if isinstance(model, Ensemble):
        shares = model.shares.float().cpu().numpy()
        members = [last_layer_inputs(member, features) for member in model.each]
        return np.concatenate([share * part for share, part in zip(shares, members, strict=True)], axis=1)
    seen: list[Tensor] = []
    linear = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    # The score of a model of several heads is the first output of its last layer.
    layers = [layer for layer in linear if layer.out_features == 1] or linear[-1:]
    hooks = [layer.register_forward_pre_hook(lambda _, given: seen.append(given[0])) for layer in layers]
    weight, was_training = next(model.parameters()), model.training
    model.eval()
    parts: list[np.ndarray] = []
    try:
        with torch.inference_mode():
            for start in range(0, len(features), BATCH):
                x = torch.from_numpy(features[start : start + BATCH]).to(weight.device, weight.dtype)
                seen.clear()
                model(x)
                parts.append(_by_program(seen[-1] if seen else x.new_empty(0), x).float().cpu().numpy())
    finally:
        for hook in hooks:
            hook.remove()
        model.train(was_training)
    return np.concatenate(parts) if parts else np.zeros((0, layers[-1].in_features if layers else 0), np.float32)


def _by_program(h: Tensor, x: Tensor) -> Tensor:
    """Sum a layer's inputs by program, (batch, d): of programs, rows (batch, rows, d), filled or all rows, flat."""
    if h.ndim == 2 and len(h) == len(x):
        return h
    import torch

    from ...models.base import row_mask

    filled = row_mask(x)
    counts = filled.sum(dim=1)
    if h.ndim == 3:
        # Rows of padding lie after the others, and perhaps those of the whole batch were cut off.
        inside = torch.arange(h.shape[1], device=h.device) < counts[:, None]
        return (h * inside[:, :, None]).sum(dim=1)
    if h.ndim == 2 and len(h) == int(counts.sum()):
        program = torch.repeat_interleave(torch.arange(len(x), device=h.device), counts)
        return h.new_zeros(len(x), h.shape[1]).index_add_(0, program, h)
    if h.ndim == 2 and len(h) % len(x) == 0:
        return h.unflatten(0, (len(x), -1)).sum(dim=1)
    raise AdaptError(
        f"the score of {len(x)} programs is not the output of a linear layer: the last one read {tuple(h.shape)}",
        remedy="choose a sampler that needs no embedding: random, stratified or rdu",
    )
