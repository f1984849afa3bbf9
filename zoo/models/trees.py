"""Boosted trees in memory: a ranker to compare networks with, and the trees that TileNet grows on one task."""

import hashlib
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch

from .base import BATCH
from .errors import ModelConfigError

# Trees of one task's measured programs, and how many of them are remembered.
TASK_ROUNDS = 60
TASK_SETTINGS = {"max_depth": 3, "eta": 0.1, "min_child_weight": 1, "lambda": 1.0, "verbosity": 0}
_REMEMBERED = 256  # five a task: a cross-validation of fifty tasks grows each once
_task_trees: dict[bytes, Any] = {}


@dataclass
class XGBoostRanker:
    """XGBoost over one row of numbers a program, with XGBoost's own names and the values of ATFormer's table 12.

    It uses as many threads as torch is set to.

    Attributes:
        pool: a program's row is the sum, the maximum and the number of its rows: right for statements, which are a
            set. Without it the rows stand side by side, for sequences.
        hardware: the last row of a program describes the device; it then stands first, so that padding is last.
        rounds: trees. The papers do not say how many.
        seed: of what the library draws.
        objective: `rank:pairwise`, or `reg:squarederror` to fit the labels themselves, which ranks better on the
            Ansor corpora.
        booster: the library's own object; None before `fit`.
    """

    pool: bool = True
    hardware: bool = False
    rounds: int = 300
    seed: int = 43
    objective: str = "rank:pairwise"
    max_depth: int = 6
    gamma: float = 0.003
    min_child_weight: float = 2.0
    eta: float = 0.2
    booster: Any = field(default=None, init=False, repr=False)
    _rows: int = field(default=0, init=False, repr=False)

    def fit(self, features: np.ndarray, labels: np.ndarray, group: np.ndarray) -> Self:
        """Learn to rank the programs of each task.

        Args:
            features: (N, rows, width); rows of zeros are padding.
            labels: (N,) in [0, 1]: smallest latency of the task / latency; group: (N,) the task of each program.
        """
        self._rows = features.shape[1]
        # The library wants the programs of a task together; among themselves they are shuffled.
        chance = np.random.default_rng(self.seed).random(len(group))
        order, sizes = np.lexsort((chance, group)), np.unique(group, return_counts=True)[1]
        self.booster = self._train(self.table(features)[order], np.asarray(labels)[order], sizes)
        return self

    def score(self, features: np.ndarray) -> np.ndarray:
        """Return scores (N,) of float64 for programs (N, rows, width); higher means faster.

        Raises:
            ModelConfigError: a program has more rows than those that were learnt from.
        """
        parts = [self._predict(self.table(features[i : i + BATCH])) for i in range(0, len(features), BATCH)]
        return np.concatenate(parts).astype(np.float64) if parts else np.zeros(0)

    def table(self, features: np.ndarray) -> np.ndarray:
        """Return one row of float32 a program: (N, rows, width) to (N, columns)."""
        x = np.asarray(features, dtype=np.float32)
        filled = (x != 0).any(axis=-1)
        if self.pool:
            highest = np.where(filled[..., None], x, -np.inf).max(axis=1, initial=-np.inf)
            highest[~filled.any(axis=1)] = 0
            return np.concatenate([x.sum(axis=1), highest, filled.sum(axis=1, keepdims=True)], axis=1, dtype=np.float32)
        if self.hardware:
            x, filled = np.roll(x, 1, axis=1), np.roll(filled, 1, axis=1)
        rows = self._rows or x.shape[1]
        if filled[:, rows:].any():
            raise ModelConfigError(
                f"a program has more than {rows} rows", remedy="fit on programs with as many rows", setting="rows"
            )
        flat = np.zeros((len(x), rows, x.shape[2]), np.float32)
        flat[:, : x.shape[1]] = x[:, :rows]
        return flat.reshape(len(x), -1)

    def keep(self, count: int) -> Self:
        """Return the ranker of the first `count` trees."""
        other = copy(self)
        other.booster = self.booster[:count]
        return other

    def parameter_count(self) -> int:
        """Return the number of nodes of all trees, each of which holds a threshold or a score."""
        return sum(tree.count("\n") for tree in self.booster.get_dump())

    def _train(self, table: np.ndarray, labels: np.ndarray, sizes: np.ndarray) -> Any:
        """Return the booster of (N, columns), labels (N,) and the programs of each task, one task after another."""
        import xgboost

        data = xgboost.DMatrix(table, label=labels)
        if self.objective.startswith("rank:"):
            data.set_group(sizes)
        settings = {
            "objective": self.objective, "max_depth": self.max_depth, "gamma": self.gamma, "eta": self.eta,
            "min_child_weight": self.min_child_weight, "seed": self.seed, "nthread": torch.get_num_threads(),
        }  # fmt: skip
        return xgboost.train(settings, data, self.rounds)

    def _predict(self, table: np.ndarray) -> np.ndarray:
        self.booster.set_param({"nthread": torch.get_num_threads()})
        return self.booster.inplace_predict(table)


def grow_task_trees(rows: np.ndarray, speed: np.ndarray) -> Any:
    """Grow an `xgboost.Booster` on the few measured programs of one task, in milliseconds.

    The last ones are remembered, for a search asks many times a round, and a cross-validation once a strength.

    Args:
        rows: (n, columns) float32, one program a row; speed: (n,) -log(latency), the unit of its predictions.
    """
    key = hashlib.sha256(rows.tobytes() + speed.tobytes()).digest()
    if key not in _task_trees:
        import xgboost

        settings = TASK_SETTINGS | {"base_score": float(speed.mean()), "nthread": torch.get_num_threads()}
        if len(_task_trees) >= _REMEMBERED:
            _task_trees.pop(next(iter(_task_trees)))
        _task_trees[key] = xgboost.train(settings, xgboost.DMatrix(rows, label=speed), TASK_ROUNDS)
    return _task_trees[key]
