"""`rdu+`, tchub's own: what the labels would teach, program by program of a batch, level over types and tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..view import ModelView
from .budgets import task_budgets
from .plain import RandomSampler
from .pool import Pool
from .protocol import finite_scores
from .reason import Selection


@dataclass(frozen=True)
class RDUPlusConfig:
    speed: float = 1.0
    cost: float = 0.0
    temper: float = 1.0


class RDUPlusSampler:
    name: ClassVar[str] = "rdu+"

    def __init__(self, config: RDUPlusConfig | None = None) -> None:
        self.config = config or RDUPlusConfig()

    def select(
        self,
        pool: Pool,
        labeled: Sequence[int] | np.ndarray,
        k: int,
        view: ModelView | None,
        rng: np.random.Generator,
        *,
        round: int = 1,
    ) -> Selection:
        """See `Sampler.select`."""
        rest = rng.permutation(pool.free(labeled, k))
        if view is None or len(labeled) == 0:
            return RandomSampler().select(pool, labeled, k, None, rng, round=round)
        scores = finite_scores(view)
        budgets = task_budgets(pool, labeled, k, rng)
        layer, cost = view.last_layer, view.cost()
        covariance = layer.covariance.copy()
        order = rest[np.argsort(pool.task[rest], kind="stable")]
        rows = []
        for members in np.split(order, np.cumsum(pool.counts(rest))[:-1]):
            if not len(members) or not (b := budgets[pool.task[members[0]]]):
                continue
            s = scores[members]
            q = np.argsort(np.argsort(s)) / max(1, len(s) - 1)
            w = np.exp(self.config.speed * q) * cost[members] ** -self.config.cost
            z = layer.inputs[members].astype(np.float64)
            var = np.einsum("np,np->n", z @ covariance, z)
            open_ = np.zeros(len(z))
            for _ in range(b):
                gain = np.log1p(np.maximum(var, 0) / (layer.noise * self.config.temper)) * w + open_
                i = int(gain.argmax())
                rows.append((members[i], var[i], gain[i]))
                open_[i] = -np.inf
                u = covariance @ z[i]
                d = layer.noise + float(u @ z[i])
                var -= (z @ u) ** 2 / d
                covariance -= np.outer(u, u / d)
        table = np.array(rows)
        return Selection.of(
            pool,
            table[:, 0].astype(np.int64),
            round,
            uncertainty=np.sqrt(np.maximum(table[:, 1], 0)),
            total=table[:, 2],
        )
