"""Pools and views for the tests of samplers."""

from __future__ import annotations

import numpy as np
from tchub.zoo.adapt.sampling import Pool
from tchub.zoo.adapt.view import ModelView


def make_pool(ops: list[str], per_task: int) -> Pool:
    return Pool(np.repeat(np.arange(len(ops)), per_task), tuple(ops))


def seen_by(scores, labeled=()) -> ModelView:
    """What a model of these scores says; samplers that ask for no more than scores get no embedding."""
    return ModelView(np.asarray(scores), labeled, np.ones(len(labeled)), lambda: np.zeros((len(scores), 1)))


def full_view(pool: Pool, labeled, seed: int = 0, scores=None, latency=None) -> ModelView:
    """What a model says whose embedding tells the latency; `labeled` ran unless their latency is given."""
    rng = np.random.default_rng(seed)
    embeddings = rng.normal(size=(len(pool), 6)).astype(np.float32)
    scores = embeddings @ rng.normal(size=6) if scores is None else np.asarray(scores)
    labeled = np.asarray(labeled, dtype=np.int64)
    latency = np.exp(-scores[labeled] + 0.1 * rng.normal(size=len(labeled))) if latency is None else latency
    return ModelView(scores, labeled, latency, lambda: embeddings, task=pool.task, features=embeddings[:, None, :])
