"""Pools and predictions for the tests of samplers."""

from __future__ import annotations

import numpy as np
from tchub.zoo.adapt.sampling import Pool, PoolPredictions


def make_pool(ops: list[str], per_task: int) -> Pool:
    return Pool(np.repeat(np.arange(len(ops)), per_task), tuple(ops))


def scores_only(scores, labeled=()) -> PoolPredictions:
    """Predictions for samplers that use no more than scores."""
    return PoolPredictions(np.asarray(scores), labeled, np.ones(len(labeled)), lambda: np.zeros((len(scores), 1)))


def uncertainty(predictions: PoolPredictions) -> np.ndarray:
    """Return the standard deviation of each score given the labels."""
    layer = predictions.last_layer
    return np.sqrt(np.einsum("np,pq,nq->n", layer.inputs, layer.covariance, layer.inputs).clip(0))


def predict_pool(pool: Pool, labeled, seed: int = 0, scores=None, latency=None) -> PoolPredictions:
    """Predictions of a model whose embedding determines the latency; `labeled` ran unless their latency is given."""
    rng = np.random.default_rng(seed)
    embeddings = rng.normal(size=(len(pool), 6)).astype(np.float32)
    scores = embeddings @ rng.normal(size=6) if scores is None else np.asarray(scores)
    labeled = np.asarray(labeled, dtype=np.int64)
    latency = np.exp(-scores[labeled] + 0.1 * rng.normal(size=len(labeled))) if latency is None else latency
    return PoolPredictions(
        scores, labeled, latency, lambda: embeddings, task=pool.task, features=embeddings[:, None, :]
    )
