"""Stock MetaSchedule's cost model as a baseline: XGBoost over statements, summed over a program.

The objective, the hyperparameters and the stopping rule are those of TVM's `xgb_model.py` (its "pack-sum"
form); here it needs no TVM, only features that TVM has made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..models.trees import library


@dataclass(frozen=True)
class XGBoostConfig:
    """MetaSchedule's defaults (`XGBConfig` and the arguments of `XGBModel`).

    Attributes:
        max_depth, gamma, min_child_weight, eta, seed, tree_method: of the booster.
        rounds: trees at most; patience: rounds without a better training error before stopping.
        threads: of the booster.
    """

    max_depth: int = 10
    gamma: float = 0.001
    min_child_weight: float = 0
    eta: float = 0.2
    seed: int = 43
    tree_method: str = "auto"
    rounds: int = 10_000
    patience: int = 50
    threads: int = 1

    def parameters(self) -> dict[str, Any]:
        """What `xgboost.train` takes."""
        values = asdict(self)
        threads = values.pop("threads")
        return {k: v for k, v in values.items() if k not in ("rounds", "patience")} | {"nthread": threads}


class PackSumXGBoost:
    """XGBoost whose score of a program is the sum of its statements' predictions."""

    def __init__(self, config: XGBoostConfig | None = None) -> None:
        self.config = config or XGBoostConfig()
        self.booster: Any = None

    def fit(
        self,
        features: Sequence[np.ndarray],
        labels: np.ndarray,
        on_round: Callable[[int, float], None] | None = None,
    ) -> PackSumXGBoost:
        """Learns from programs.

        Args:
            features: one (statements, width) float32 array a program; programs without statements are left
                out, as TVM does.
            labels: smallest latency of the task / latency, (programs,).
            on_round: told each round and its training error.

        Raises:
            MissingPackageError: xgboost is not installed.
        """
        xgboost = library("xgboost")
        kept = [i for i, f in enumerate(features) if len(f)]
        rows, ids = _pack([features[i] for i in kept])
        # TVM labels and weighs every statement with its program's label, in float32.
        ys = np.asarray(labels, dtype=np.float32)[kept][ids]
        data = xgboost.DMatrix(data=rows, label=ys)
        data.set_weight(ys)

        def objective(predictions: np.ndarray, _: Any) -> tuple[np.ndarray, np.ndarray]:
            gradient = np.bincount(ids, weights=predictions)[ids] - ys
            return gradient * ys, np.ones_like(gradient) * ys

        def error(predictions: np.ndarray) -> float:
            return float(np.sqrt(np.square(np.bincount(ids, weights=predictions)[ids] - ys).mean()))

        stop = _stop_on_training_error(xgboost, data, error, self.config.patience, on_round)
        self.booster = xgboost.train(
            self.config.parameters(), data, self.config.rounds, obj=objective, callbacks=[stop]
        )
        return self

    def predict(self, features: Sequence[np.ndarray]) -> np.ndarray:
        """Scores, (programs,) float64, higher is faster; 0 for a program without statements.

        Raises:
            MissingPackageError: xgboost is not installed.
        """
        xgboost = library("xgboost")
        rows, ids = _pack(features)
        if not len(rows):
            return np.zeros(len(features))
        predictions = self.booster.predict(xgboost.DMatrix(data=rows))
        return np.bincount(ids, weights=predictions, minlength=len(features)).astype(np.float64)


def _pack(features: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """All statements in one array, and the program of each."""
    ids = np.repeat(np.arange(len(features)), [len(f) for f in features])
    filled = [f for f in features if len(f)]
    return (np.concatenate(filled) if filled else np.zeros((0, 0), np.float32)), ids


def _stop_on_training_error(
    xgboost: Any,
    data: Any,
    error: Callable[[np.ndarray], float],
    patience: int,
    on_round: Callable[[int, float], None] | None,
) -> Any:
    class Stop(xgboost.callback.TrainingCallback):
        """Stops when the training error has not fallen for `patience` rounds."""

        best, best_round = float("inf"), 0

        def after_iteration(self, model: Any, epoch: int, evals_log: dict) -> bool:
            # XGBoost caches the margins of its training matrix, so this costs one pass over new leaves.
            # TVM compares the error as xgboost prints it, with five digits.
            value = float(f"{error(model.predict(data, training=False)):.5f}")
            if on_round:
                on_round(epoch, value)
            if value < self.best:
                self.best, self.best_round = value, epoch
            return epoch - self.best_round >= patience

    return Stop()
