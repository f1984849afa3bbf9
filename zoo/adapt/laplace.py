"""How sure a network is of its scores: a Gaussian posterior over the weights of its last linear layer.

The Laplace approximation of the last layer with a Gaussian likelihood is Bayesian linear regression on the
layer's inputs (Bishop 2006, section 3.5; Daxberger et al. 2021). Only differences within a task are learnt and
predicted, so the level of every task is taken out of inputs and labels. Prior and noise are those under which
the labels are most probable, except that the prior is as wide as the noise at least: few labels that fit nothing
say that these labels fit nothing, not that there is nothing to learn.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# Directions kept of the inputs: those of the most variance. More cost time and hold noise.
DIRECTIONS = 48
# Programs that tell the directions.
_SAMPLE = 20_000
_ROUNDS = 30
_TINY = 1e-9


@dataclass(frozen=True)
class LastLayer:
    """The posterior, in the coordinates of the directions kept.

    Attributes:
        inputs: (N, p) float32 of the pool, relative to the mean of the task's programs.
        covariance: (p, p) of the weights given the labels.
        noise: variance of a label, log latency squared.
    """

    inputs: np.ndarray
    covariance: np.ndarray
    noise: float

    def variance(self) -> np.ndarray:
        """(N,) float64: variance of each program's score against its task's level."""
        return np.maximum(np.einsum("np,np->n", self.inputs @ self.covariance.astype(np.float32), self.inputs), 0.0)

    def deviation(self) -> np.ndarray:
        """(N,) float64: its square root."""
        return np.sqrt(self.variance()).astype(np.float64)


def fit_last_layer(embeddings: np.ndarray, task: np.ndarray, known: np.ndarray, latency: np.ndarray) -> LastLayer:
    """The posterior given labels. O(N d p).

    Args:
        embeddings: (N, d) of the pool; task: (N,) of each program.
        known: (m,) places of the labeled programs; latency: (m,) their seconds, finite and above 0.

    Without two labels in one task the posterior is the prior, with noise as large as the signal.
    """
    inputs = _directions(embeddings, task)
    tasks = int(task.max()) + 1 if len(task) else 0
    own = task[known]
    z = inputs[known].astype(np.float64)
    z -= task_means(z, own, tasks)[own]
    y = -np.log(latency)
    y -= task_means(y, own, tasks)[own]
    prior, noise = _evidence(z, y, len(known) - len(np.unique(own)))
    precision = np.eye(inputs.shape[1]) / prior + z.T @ z / noise
    return LastLayer(inputs, np.linalg.inv(precision), noise)


def task_means(values: np.ndarray, task: np.ndarray, tasks: int) -> np.ndarray:
    """Mean of the values (n,) or (n, p) of each task, (T,) or (T, p); 0 for a task without any."""
    counts = np.bincount(task, minlength=tasks).clip(1)
    if values.ndim == 1:
        return np.bincount(task, values, tasks) / counts
    return np.stack([np.bincount(task, column, tasks) for column in values.T], axis=1) / counts[:, None]


def _directions(embeddings: np.ndarray, task: np.ndarray) -> np.ndarray:
    """(N, p) float32: embeddings relative to their task's mean, on their main directions, of unit mean square."""
    if not len(task):
        return np.zeros((0, 1), np.float32)
    centred = embeddings - task_means(embeddings, task, int(task.max()) + 1)[task].astype(np.float32)
    step = -(-len(centred) // _SAMPLE)
    some = centred[::step].astype(np.float64)
    values, vectors = np.linalg.eigh(some.T @ some / len(some))
    kept = np.argsort(values)[::-1][:DIRECTIONS]
    kept = kept[values[kept] > _TINY * max(values.max(), _TINY)]
    if not len(kept):
        return np.zeros((len(centred), 1), np.float32)
    scale = np.sqrt(values[kept].sum())
    return centred @ (vectors[:, kept] / scale).astype(np.float32)


def _evidence(z: np.ndarray, y: np.ndarray, degrees: int) -> tuple[float, float]:
    """Variance of the prior and of the noise by MacKay's fixed point; 1 and 1 without anything to learn.

    Args:
        z: (m, p) inputs and y: (m,) labels, each relative to its task; degrees: labels less levels.
    """
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
        # With as many directions as labels nothing is left to tell the noise by: a hundredth of the signal is.
        noise = max(error / max(degrees - used, 1.0), 0.01 * power / degrees)
    return max(prior, noise), noise
