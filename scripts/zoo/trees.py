"""Rankers of trees that the leaderboard compares networks with: XGBoost's two, and LightGBM's."""

from copy import copy
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from tchub.zoo.models.trees import XGBoostRanker

# LightGBM refuses longer queries.
_LONGEST_QUERY = 10_000


@dataclass
class LightGBMRanker(XGBoostRanker):
    """LightGBM's `lambdarank` with the values of ATFormer's table 13; tasks above its limit are ranked in equal parts.

    `min_data_in_leaf` is the table's "min_sum_leaf": a sum of 4 of lambdarank's small weights would leave trees bare.
    LightGBM ranks by whole labels: ours, in [0, 1], are rounded to so many `levels` (TCL, equation 6).
    """

    num_leaves: int = 72
    learning_rate: float = 0.16
    bagging_freq: int = 4
    min_data_in_leaf: int = 4
    feature_fraction: float = 0.84
    bagging_fraction: float = 0.89
    levels: int = 31

    def keep(self, count: int) -> Self:
        import lightgbm

        other = copy(self)
        other.booster = lightgbm.Booster(model_str=self.booster.model_to_string(num_iteration=count))
        return other

    def parameter_count(self) -> int:
        return sum(2 * tree["num_leaves"] - 1 for tree in self.booster.dump_model()["tree_info"])

    def _train(self, table: np.ndarray, labels: np.ndarray, sizes: np.ndarray) -> Any:
        import lightgbm

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


# Name -> its features and its settings. `xgboost-nest` reads the numbers of TileNet and fits the labels, the strongest.
TREES: dict[str, tuple[str, XGBoostRanker]] = {
    "xgboost": ("tlp", XGBoostRanker()),
    "xgboost-nest": ("nest", XGBoostRanker(objective="reg:squarederror", eta=0.1)),
    "lightgbm": ("tlp", LightGBMRanker()),
}
