"""What the rankers of gradient-boosted trees share; each is in a file of its own."""

from __future__ import annotations

import importlib
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from ..errors import MissingPackageError
from .base import CostModel
from .errors import ModelConfigError, NotFittedError
from .statements import SCHEMAS as STATEMENT_SCHEMAS
from .statements import StatementConfig
from .tlp import SCHEMAS as PRIMITIVE_SCHEMAS
from .tree_files import count_nodes

SCHEMAS = (*STATEMENT_SCHEMAS, *PRIMITIVE_SCHEMAS, "nest-cpu", "nest-gpu")


@dataclass(frozen=True)
class TreeConfig(StatementConfig):
    """What a program's row of the table is made of, and how many trees learn from it.

    Attributes:
        pool: a program's row is the sum and the maximum of its rows and their number: right for statements,
            which are a set. Without it the rows stand side by side, for sequences.
        rows: how many stand side by side; not read where they are pooled.
        rounds: trees. The papers do not say.
        seed: of what the library draws.
    """

    pool: bool = True
    rows: int = 10
    rounds: int = 300
    seed: int = 43

    @property
    def columns(self) -> int:
        """Of the table that the trees read."""
        return 2 * self.width + 1 if self.pool else self.rows * self.width


class TreeModel(CostModel):
    """A ranker of trees: `fit` in place of training, the library's own file in place of tensors.

    It scores like every other model but knows no gradient. Fitting and scoring use as many threads as torch
    is set to.
    """

    config: TreeConfig

    def __init__(self, config: TreeConfig) -> None:
        super().__init__(config)
        self.booster: Any = None

    @abstractmethod
    def fit(self, features: np.ndarray, labels: np.ndarray, group: np.ndarray) -> Self:
        """Learns to rank the programs of each task.

        Args:
            features: (N, rows, width); rows of zeros are padding.
            labels: (N,) in [0, 1]: smallest latency of the task / latency.
            group: (N,) the task of each program.

        Raises:
            MissingPackageError: the library is not installed.
            ModelConfigError: a program has more rows than the config has room for.
        """

    @abstractmethod
    def dump(self) -> bytes:
        """The trees in the library's own text format.

        Raises:
            NotFittedError: there are none.
        """

    @abstractmethod
    def restore(self, data: bytes) -> None:
        """Takes over trees as `tree_files.check_trees` has written them.

        Raises:
            MissingPackageError: the library is not installed.
            ValueError: the library refuses them.
        """

    @abstractmethod
    def _predict(self, table: np.ndarray) -> np.ndarray:
        """Scores of (N, columns): (N,)."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.from_numpy(self.score(x.detach().cpu().float().numpy())).to(x.device, x.dtype)

    def score(self, features: np.ndarray, batch: int = 1024) -> np.ndarray:
        self.trees()
        parts = [self._predict(self.table(features[i : i + batch])) for i in range(0, len(features), batch)]
        return np.concatenate(parts).astype(np.float64) if parts else np.zeros(0)

    def parameter_count(self) -> int:
        """Nodes of all trees, each of which holds a threshold or a score."""
        return 0 if self.booster is None else count_nodes(self.dump(), self.arch, self.config.columns)

    def table(self, features: np.ndarray) -> np.ndarray:
        """One row a program: (N, rows, width) to (N, columns) of float32."""
        x = np.asarray(features, dtype=np.float32)
        filled = (x != 0).any(axis=-1)
        if self.config.pool:
            highest = np.where(filled[..., None], x, -np.inf).max(axis=1, initial=-np.inf)
            highest[~filled.any(axis=1)] = 0
            return np.concatenate([x.sum(axis=1), highest, filled.sum(axis=1, keepdims=True)], axis=1, dtype=np.float32)
        if self.config.hardware:  # the device first, so that padding is last
            x, filled = np.roll(x, 1, axis=1), np.roll(filled, 1, axis=1)
        rows = self.config.rows
        if filled[:, rows:].any():
            raise ModelConfigError(
                f"a program has more than {rows} rows",
                remedy="set rows to those of the feature schema",
                arch=self.arch,
                setting="rows",
            )
        flat = np.zeros((len(x), rows, self.config.width), np.float32)
        flat[:, : x.shape[1]] = x[:, :rows]
        return flat.reshape(len(x), -1)

    def trees(self) -> Any:
        """The library's own object.

        Raises:
            NotFittedError: there are none.
        """
        if self.booster is None:
            raise NotFittedError(
                f"this {self.arch} model has no trees yet", remedy="call fit, or load a checkpoint", arch=self.arch
            )
        return self.booster

    def queries(self, group: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """An order that puts the programs of a task together, shuffled among themselves, and the tasks' sizes."""
        chance = np.random.default_rng(self.config.seed).random(len(group))
        return np.lexsort((chance, group)), np.unique(group, return_counts=True)[1]


# How to install what an installation may lack.
_REMEDIES = {"xgboost": "pip install xgboost-cpu", "lightgbm": "pip install 'tchub[bench]'"}


def library(name: str) -> Any:
    """The package of this name, imported.

    Raises:
        MissingPackageError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingPackageError(
            f"this model needs the package {name}", remedy=_REMEDIES[name], package=name
        ) from error
