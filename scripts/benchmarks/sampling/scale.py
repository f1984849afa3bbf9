"""How long every sampler takes to pick from a pool of a million programs."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

OPS = ("conv2d", "depthwise", "matmul", "batch_matmul", "softmax", "pool", "norm", "reduce")


def time_samplers(
    size: int, budgets: tuple[int, ...], names: tuple[str, ...], tasks: int = 1000
) -> list[dict[str, Any]]:
    """Seconds of `select`, the scores and embeddings being there, on a made-up pool.

    Args:
        size: programs; their tasks have unlike sizes.
        budgets: programs to pick.
        names: of samplers.
        tasks: in the pool.
    """
    from tchub.zoo.adapt.sampling import Pool, PoolPredictions, create_sampler

    rng = np.random.default_rng(0)
    task = np.sort(rng.choice(tasks, size=size, p=rng.dirichlet(np.full(tasks, 5.0))))
    pool = Pool(task, tuple(rng.choice(OPS, size=tasks).tolist()))
    embeddings = rng.normal(size=(size, 64)).astype(np.float32)
    scores = embeddings[:, :8].sum(axis=1).astype(np.float64)
    labeled = rng.choice(size, 1000, replace=False)
    latency = np.exp(-scores[labeled] / 8 + 0.1 * rng.normal(size=1000)) / 1000
    rows = []
    for name in names:
        for budget in budgets:
            view = PoolPredictions(
                scores, labeled, latency, lambda: embeddings, task=task, features=embeddings[:, None]
            )
            began = time.perf_counter()
            picked = create_sampler(name).select(pool, labeled, budget, view, np.random.default_rng(0))
            seconds = time.perf_counter() - began
            rows.append({"sampler": name, "pool": size, "budget": len(picked.indices), "seconds": round(seconds, 2)})
    return rows
