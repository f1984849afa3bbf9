"""LightGBM with its own ranking objective (papers: ATFormer, table 13)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch

from .registry import register
from .trees import SCHEMAS, TreeConfig, TreeModel, library

# LightGBM refuses longer queries.
_LONGEST_QUERY = 10_000


@dataclass(frozen=True)
class LightGBMRankerConfig(TreeConfig):
    """LightGBM's own names; the values are those of ATFormer's table 13.

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


@register(
    "lightgbm",
    LightGBMRankerConfig,
    schemas=SCHEMAS,
    paper="ATFormer, table 13",
    inputs="statements",
    weights="lightgbm",
)
class LightGBMRanker(TreeModel):
    """LightGBM with `lambdarank`. Tasks of more than 10,000 programs, its limit, are ranked in equal parts."""

    config: LightGBMRankerConfig

    def fit(self, features: np.ndarray, labels: np.ndarray, group: np.ndarray) -> Self:
        lightgbm, c = library("lightgbm"), self.config
        order, sizes = self.queries(group)
        steps = max(1, c.levels - 1)
        settings = {
            "objective": "lambdarank", "label_gain": (2.0 ** (np.arange(steps + 1) / steps) - 1).tolist(),
            "num_leaves": c.num_leaves, "learning_rate": c.learning_rate, "bagging_freq": c.bagging_freq,
            "min_data_in_leaf": c.min_data_in_leaf, "feature_fraction": c.feature_fraction,
            "bagging_fraction": c.bagging_fraction, "seed": c.seed, "num_threads": torch.get_num_threads(),
            "deterministic": True, "force_row_wise": True, "verbosity": -1,
        }  # fmt: skip
        levels = np.rint(np.asarray(labels)[order] * steps).astype(np.int32)
        data = lightgbm.Dataset(self.table(features)[order], label=levels, group=_in_parts(sizes), params=settings)
        self.booster = lightgbm.train(settings, data, c.rounds)
        return self

    def dump(self) -> bytes:
        return self.trees().model_to_string().encode()

    def restore(self, data: bytes) -> None:
        lightgbm = library("lightgbm")
        try:
            self.booster = lightgbm.Booster(model_str=data.decode())
        except lightgbm.basic.LightGBMError as error:
            raise ValueError(str(error)) from error

    def _predict(self, table: np.ndarray) -> np.ndarray:
        return self.booster.predict(table, num_threads=torch.get_num_threads())


def _in_parts(sizes: np.ndarray) -> np.ndarray:
    """Sizes with those above LightGBM's limit cut into nearly equal parts."""
    parts = [np.full(n := -(-size // _LONGEST_QUERY), size // n) + (np.arange(n) < size % n) for size in sizes]
    return np.concatenate(parts) if parts else sizes
