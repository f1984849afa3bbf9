"""XGBoost with its own ranking objective (papers: ATFormer, table 12)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch

from .errors import ModelConfigError
from .registry import register
from .tree_files import OBJECTIVES
from .trees import SCHEMAS, TreeConfig, TreeModel, library


@dataclass(frozen=True)
class XGBoostRankerConfig(TreeConfig):
    """XGBoost's own names; the values are those of ATFormer's table 12.

    Attributes:
        objective: `rank:pairwise`, or `reg:squarederror` to fit the labels themselves, which ranks better on the
            Ansor corpora (see the recipe xgboost-nest).
    """

    objective: str = "rank:pairwise"

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES["xgboost"]:
            raise ModelConfigError(
                f"xgboost: objective is {self.objective!r}",
                remedy=f"use {' or '.join(OBJECTIVES['xgboost'])}",
                arch="xgboost",
                setting="objective",
            )

    max_depth: int = 6
    gamma: float = 0.003
    min_child_weight: float = 2.0
    eta: float = 0.2


@register(
    "xgboost",
    XGBoostRankerConfig,
    schemas=SCHEMAS,
    paper="ATFormer, table 12",
    inputs="statements",
    weights="xgboost",
)
class XGBoostRanker(TreeModel):
    """XGBoost with `rank:pairwise`."""

    config: XGBoostRankerConfig

    def fit(self, features: np.ndarray, labels: np.ndarray, group: np.ndarray) -> Self:
        xgboost, c = library("xgboost"), self.config
        order, sizes = self.queries(group)
        data = xgboost.DMatrix(self.table(features)[order], label=np.asarray(labels)[order])
        if c.objective.startswith("rank:"):
            data.set_group(sizes)
        settings = {
            "objective": c.objective, "max_depth": c.max_depth, "gamma": c.gamma, "eta": c.eta,
            "min_child_weight": c.min_child_weight, "seed": c.seed, "nthread": torch.get_num_threads(),
        }  # fmt: skip
        self.booster = xgboost.train(settings, data, c.rounds)
        return self

    def dump(self) -> bytes:
        return bytes(self.trees().save_raw("json"))

    def restore(self, data: bytes) -> None:
        self.booster = library("xgboost").Booster()
        self.booster.load_model(bytearray(data))  # XGBoostError is a ValueError

    def _predict(self, table: np.ndarray) -> np.ndarray:
        self.booster.set_param({"nthread": torch.get_num_threads()})
        return self.booster.inplace_predict(table)
