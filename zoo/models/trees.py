"""Boosted trees that live in memory: rankers to compare networks with, and the trees that TileNet grows on one task."""

from __future__ import annotations

import hashlib
import importlib
from abc import ABC, abstractmethod
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch

from ..errors import MissingPackageError
from .errors import ModelConfigError

# LightGBM refuses longer queries.
_LONGEST_QUERY = 10_000
# Trees of one task's measured programs, and how many of them are remembered.
TASK_ROUNDS = 60
TASK_SETTINGS = {"max_depth": 3, "eta": 0.1, "min_child_weight": 1, "lambda": 1.0, "verbosity": 0}
_REMEMBERED = 64
_task_trees: dict[bytes, Any] = {}
_REMEDIES = {"xgboost": "pip install xgboost-cpu", "lightgbm": "pip install 'tchub[bench]'"}


def import_library(name: str) -> Any:
    """Import the package `xgboost` or `lightgbm`.

    Raises:
        MissingPackageError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingPackageError(
            f"this model needs the package {name}", remedy=_REMEDIES[name], package=name
        ) from error


@dataclass
class TreeRanker(ABC):
    """A ranker of gradient-boosted trees over one row of numbers a program; uses as many threads as torch is set to.

    Attributes:
        pool: a program's row is the sum, the maximum and the number of its rows: right for statements, which are a
            set. Without it the rows stand side by side, for sequences.
        hardware: the last row of a program describes the device; it then stands first, so that padding is last.
        rounds: trees. The papers do not say how many.
        seed: of what the library draws.
        booster: the library's own object; None before `fit`.
    """

    pool: bool = True
    hardware: bool = False
    rounds: int = 300
    seed: int = 43
    booster: Any = field(default=None, init=False, repr=False)
    _rows: int = field(default=0, init=False, repr=False)

    def fit(self, features: np.ndarray, labels: np.ndarray, group: np.ndarray) -> Self:
        """Learn to rank the programs of each task.

        Args:
            features: (N, rows, width); rows of zeros are padding.
            labels: (N,) in [0, 1]: smallest latency of the task / latency.
            group: (N,) the task of each program.

        Raises:
            MissingPackageError: the library is not installed.
        """
        self._rows = features.shape[1]
        # The library wants the programs of a task together; among themselves they are shuffled.
        chance = np.random.default_rng(self.seed).random(len(group))
        order, sizes = np.lexsort((chance, group)), np.unique(group, return_counts=True)[1]
        self.booster = self._train(self.table(features)[order], np.asarray(labels)[order], sizes)
        return self

    def score(self, features: np.ndarray, batch: int = 1024) -> np.ndarray:
        """Return scores (N,) of float64 for programs (N, rows, width); higher means faster.

        Raises:
            ModelConfigError: a program has more rows than those that were learnt from.
        """
        parts = [self._predict(self.table(features[i : i + batch])) for i in range(0, len(features), batch)]
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

    @abstractmethod
    def keep(self, count: int) -> Self:
        """Return the ranker of the first `count` trees."""

    @abstractmethod
    def parameter_count(self) -> int:
        """Return the number of nodes of all trees, each of which holds a threshold or a score."""

    @abstractmethod
    def _train(self, table: np.ndarray, labels: np.ndarray, sizes: np.ndarray) -> Any:
        """Return the booster of (N, columns), labels (N,) and the programs of each task, one task after another."""

    @abstractmethod
    def _predict(self, table: np.ndarray) -> np.ndarray:
        """Return the scores of (N, columns): (N,)."""


@dataclass
class XGBoostRanker(TreeRanker):
    """XGBoost with XGBoost's own names and the values of ATFormer's table 12.

    Attributes:
        objective: `rank:pairwise`, or `reg:squarederror` to fit the labels themselves, which ranks better on the
            Ansor corpora.
    """

    objective: str = "rank:pairwise"
    max_depth: int = 6
    gamma: float = 0.003
    min_child_weight: float = 2.0
    eta: float = 0.2

    def keep(self, count: int) -> Self:
        other = copy(self)
        other.booster = self.booster[:count]
        return other

    def parameter_count(self) -> int:
        return sum(tree.count("\n") for tree in self.booster.get_dump())

    def _train(self, table: np.ndarray, labels: np.ndarray, sizes: np.ndarray) -> Any:
        xgboost = import_library("xgboost")
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


@dataclass
class LightGBMRanker(TreeRanker):
    """LightGBM's `lambdarank` with LightGBM's own names and the values of ATFormer's table 13.

    Tasks of more than 10,000 programs, its limit, are ranked in equal parts.

    Attributes:
        min_data_in_leaf: the table's "min_sum_leaf", which in a regression, where each example weighs one, is
            as many examples; lambdarank's weights are so small that the sum of 4 would leave trees bare.
        feature_fraction, bagging_fraction: the table's "fraction_f" and "fraction_b".
        levels: LightGBM ranks by whole labels: ours, in [0, 1], are rounded to this many, and each gains
            2**label - 1 (TCL, equation 6).
    """

    num_leaves: int = 72
    learning_rate: float = 0.16
    bagging_freq: int = 4
    min_data_in_leaf: int = 4
    feature_fraction: float = 0.84
    bagging_fraction: float = 0.89
    levels: int = 31

    def keep(self, count: int) -> Self:
        other = copy(self)
        text = self.booster.model_to_string(num_iteration=count)
        other.booster = import_library("lightgbm").Booster(model_str=text)
        return other

    def parameter_count(self) -> int:
        return sum(2 * tree["num_leaves"] - 1 for tree in self.booster.dump_model()["tree_info"])

    def _train(self, table: np.ndarray, labels: np.ndarray, sizes: np.ndarray) -> Any:
        lightgbm = import_library("lightgbm")
        steps = max(1, self.levels - 1)
        settings = {
            "objective": "lambdarank", "label_gain": (2.0 ** (np.arange(steps + 1) / steps) - 1).tolist(),
            "num_leaves": self.num_leaves, "learning_rate": self.learning_rate, "bagging_freq": self.bagging_freq,
            "min_data_in_leaf": self.min_data_in_leaf, "feature_fraction": self.feature_fraction,
            "bagging_fraction": self.bagging_fraction, "seed": self.seed, "num_threads": torch.get_num_threads(),
            "deterministic": True, "force_row_wise": True, "verbosity": -1,
        }  # fmt: skip
        levels = np.rint(labels * steps).astype(np.int32)
        data = lightgbm.Dataset(table, label=levels, group=_split_queries(sizes), params=settings)
        return lightgbm.train(settings, data, self.rounds)

    def _predict(self, table: np.ndarray) -> np.ndarray:
        return self.booster.predict(table, num_threads=torch.get_num_threads())


def _split_queries(sizes: np.ndarray) -> np.ndarray:
    """Return sizes with those above LightGBM's limit cut into nearly equal parts."""
    parts = [np.full(n := -(-size // _LONGEST_QUERY), size // n) + (np.arange(n) < size % n) for size in sizes]
    return np.concatenate(parts) if parts else sizes


def grow_task_trees(rows: np.ndarray, speed: np.ndarray) -> Any:
    """Grow trees on the few measured programs of one task, in milliseconds.

    The last ones are remembered, for a search asks many times a round.

    Args:
        rows: (n, columns) float32, one program a row.
        speed: (n,) -log(latency).

    Returns:
        An `xgboost.Booster`; its predictions are in the unit of `speed`.
    """
    key = hashlib.sha256(rows.tobytes() + speed.tobytes()).digest()
    if key not in _task_trees:
        xgboost = import_library("xgboost")
        settings = TASK_SETTINGS | {"base_score": float(speed.mean()), "nthread": torch.get_num_threads()}
        if len(_task_trees) >= _REMEMBERED:
            _task_trees.pop(next(iter(_task_trees)))
        _task_trees[key] = xgboost.train(settings, xgboost.DMatrix(rows, label=speed), TASK_ROUNDS)
    return _task_trees[key]
