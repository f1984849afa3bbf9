"""Boosted trees as baselines: stock MetaSchedule's cost model, and a ranker that learns as a network does.

`PackSumXGBoost` is XGBoost over statements, summed over a program: objective, hyperparameters and stopping rule are
those of TVM's `xgb_model.py` (its "pack-sum" form); it needs no TVM, only features of TVM.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..models.trees import XGBoostRanker, import_library
from .dataset import RankingDataset
from .metrics import evaluate_scores
from .training_data import TrainingData

# Numbers of trees that are tried on the validation tasks, evenly spread.
_STEPS = 20


@dataclass
class PackSumXGBoost:
    """XGBoost whose score of a program is the sum of its statements' predictions; the defaults are MetaSchedule's.

    Attributes:
        max_depth, gamma, min_child_weight, eta, seed: of the booster, `XGBConfig` in TVM.
        rounds: trees at most; patience: rounds without a better training error before stopping.
        threads: of the booster.
        booster: XGBoost's own object; None before `fit`.
    """

    max_depth: int = 10
    gamma: float = 0.001
    min_child_weight: float = 0
    eta: float = 0.2
    seed: int = 43
    rounds: int = 10_000
    patience: int = 50
    threads: int = 1
    booster: Any = field(default=None, init=False, repr=False)

    def fit(
        self,
        features: Sequence[np.ndarray],
        labels: np.ndarray,
        on_round: Callable[[int, float], None] = lambda number, error: None,
    ) -> PackSumXGBoost:
        """Learn from programs.

        Args:
            features: one (statements, width) array a program; those without statements are left out, as TVM does.
            labels: smallest latency of the task / latency, (programs,).
            on_round: gets the number of each round and its training error.

        Raises:
            MissingPackageError: xgboost is not installed.
        """
        xgboost = import_library("xgboost")
        kept = [i for i, f in enumerate(features) if len(f)]
        rows, ids = _pack([features[i] for i in kept])
        # TVM labels and weighs every statement with its program's label, in float32.
        ys = np.asarray(labels, dtype=np.float32)[kept][ids]
        data = xgboost.DMatrix(data=rows, label=ys)
        data.set_weight(ys)
        numbers = itertools.count()

        def objective(predictions: np.ndarray, _: Any) -> tuple[np.ndarray, np.ndarray]:
            gradient = np.bincount(ids, weights=predictions)[ids] - ys
            return gradient * ys, np.ones_like(gradient) * ys

        def error(predictions: np.ndarray, _: Any) -> tuple[str, float]:
            value = np.sqrt(np.square(np.bincount(ids, weights=predictions)[ids] - ys).mean())
            value = float(f"{value:.5f}")  # TVM compares the error as xgboost prints it
            on_round(next(numbers), value)
            return "error", value

        settings = {
            "max_depth": self.max_depth, "gamma": self.gamma, "min_child_weight": self.min_child_weight,
            "eta": self.eta, "seed": self.seed, "tree_method": "auto", "nthread": self.threads,
            "disable_default_eval_metric": True,
        }  # fmt: skip
        stop = xgboost.callback.EarlyStopping(rounds=self.patience, metric_name="error", maximize=False)
        self.booster = xgboost.train(
            settings, data, self.rounds, evals=[(data, "train")], obj=objective, custom_metric=error,
            callbacks=[stop], verbose_eval=False,
        )  # fmt: skip
        return self

    def predict(self, features: Sequence[np.ndarray]) -> np.ndarray:
        """Return scores (programs,) of float64, higher is faster; 0 for a program without statements.

        Raises:
            MissingPackageError: xgboost is not installed.
        """
        xgboost = import_library("xgboost")
        rows, ids = _pack(features)
        if not len(rows):
            return np.zeros(len(features))
        predictions = self.booster.predict(xgboost.DMatrix(data=rows))
        return np.bincount(ids, weights=predictions, minlength=len(features)).astype(np.float64)


def _pack(features: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return all statements in one array, and the program of each."""
    ids = np.repeat(np.arange(len(features)), [len(f) for f in features])
    filled = [f for f in features if len(f)]
    return (np.concatenate(filled) if filled else np.zeros((0, 0), np.float32)), ids


@dataclass(frozen=True)
class TreeFit:
    """A fitted ranker of trees, with its scores.

    Attributes:
        ranker: with the number of trees that ranks the validation tasks best.
        test, validation: `evaluate_scores` on these tasks; None without any.
        seconds: that the fit took.
    """

    ranker: XGBoostRanker
    test: dict[str, float] | None
    validation: dict[str, float] | None
    seconds: float


def fit_trees(ranker: XGBoostRanker, data: TrainingData, seed: int = 0) -> TreeFit:
    """Fit a ranker with these settings, and keep the first so many trees that rank the validation tasks best.

    All trees are kept where no two programs of the validation tasks can be compared.

    Raises:
        MissingPackageError: the library is not installed.
    """
    started = time.perf_counter()
    # Statements are a set; primitives are a sequence, whose positions have a meaning.
    layout = {"pool": data.schema.source == "statements", "hardware": data.schema.hardware}
    ranker = replace(ranker, **layout, seed=ranker.seed + seed)
    ranker.fit(data.train.features, data.train.labels, data.train.group)
    seconds = time.perf_counter() - started
    if data.val is not None:
        counts = np.unique(np.linspace(0, ranker.rounds, _STEPS + 1)[1:].round().astype(int))
        scores = {int(count): evaluate_trees(ranker.keep(int(count)), data.val)["pairwise"] for count in counts}
        known = {count: score for count, score in scores.items() if np.isfinite(score)}
        ranker = ranker.keep(max(known, key=lambda count: known[count], default=ranker.rounds))
    test, validation = (None if part is None else evaluate_trees(ranker, part) for part in (data.test, data.val))
    return TreeFit(ranker, test, validation, round(seconds, 1))


def evaluate_trees(ranker: XGBoostRanker, data: RankingDataset) -> dict[str, float]:
    """Return `evaluate_scores` of the ranker's scores on a data set."""
    return evaluate_scores(ranker.score(data.features), data.latency, data.group, data.task_weights)
