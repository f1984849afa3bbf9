"""TenSet's transfer: the pretrained model stays, and a small local model of the new device predicts the gap.

A rival that TLP, section 5.1, names beside fine-tuning and multi-task learning.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..models import CostModel, create, get_architecture
from ..models.trees import TreeModel
from ..training.dataset import RankingDataset
from .embedding import last_layer_inputs
from .errors import LocalModelError
from .fine_tune import check_features, check_labels

KINDS = ("trees", "ridge")


@dataclass(frozen=True)
class LocalModelConfig:
    """What predicts the gap.

    The defaults were chosen on validation tasks; `scripts/bench_choices.py` changes each of them alone.

    Attributes:
        kind: "trees" on the features, or "ridge" on the model's embeddings.
        rounds, max_depth: of the trees, boosted on the squared error; eta: their step.
        strengths: of the ridge, relative to the embeddings' variance; labels left out one at a time choose.
    """

    kind: str = "trees"
    rounds: int = 30
    max_depth: int = 3
    eta: float = 0.1
    strengths: tuple[float, ...] = (0.1, 1.0, 10.0, 100.0, 1e3, 1e4)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise LocalModelError(
                f"no local model is of kind {self.kind!r}", remedy=f"use one of: {', '.join(KINDS)}", given=self.kind
            )


@dataclass(frozen=True)
class LocalModel:
    """A pretrained model and what corrects it; neither is changed by the other.

    Attributes:
        model: the pretrained one.
        slope: -log(latency) a unit of its score, at least 0: scores of most losses have no unit.
        gap: the trees, or the ridge.
        programs, tasks: learnt from.
    """

    model: CostModel
    slope: float
    gap: TreeModel | Ridge
    programs: int
    tasks: int

    def score(self, features: np.ndarray) -> np.ndarray:
        """(N,) float64 for programs (N, rows, width): estimates of -log(latency) up to the level of the task."""
        base = self.slope * self.model.score(features)
        if isinstance(self.gap, TreeModel):
            return base + self.gap.score(features)
        return base + self.gap.predict(last_layer_inputs(self.model, features))


@dataclass(frozen=True)
class Ridge:
    """A linear map of standardised embeddings: weights (d,), mean (d,), scale (d,)."""

    weights: np.ndarray
    mean: np.ndarray
    scale: np.ndarray
    strength: float

    def predict(self, embeddings: np.ndarray) -> np.ndarray:
        """(N,) for embeddings (N, d)."""
        return ((embeddings - self.mean) / self.scale) @ self.weights


def fit_local(model: CostModel, data: RankingDataset, config: LocalModelConfig | None = None) -> LocalModel:
    """Fits a local model to measured programs. Deterministic.

    The gap is -log(latency) less the model's score times a slope fitted to the same programs, both with their
    means in the task taken off: a score tells no level. Tasks of one program thus teach nothing.

    Args:
        model: the pretrained network; it is not changed.
        data: measured programs, several of each task.
        config: which local model.

    Raises:
        NotTrainableError: a ridge is asked for, and the model is made of trees, which have no embeddings.
        LabelError: no task has two programs of different latency, or a latency is NaN.
        SourceMismatchError: the programs are of other features than the model's.
        MissingPackageError: trees, and xgboost is not installed.
    """
    config = config or LocalModelConfig()
    check_features(model, data)
    tasks = check_labels(data)
    scores, speed = _within_tasks(model.score(data.features), data), _within_tasks(-np.log(data.latency), data)
    slope = max(0.0, float(scores @ speed) / max(float(scores @ scores), np.finfo(np.float64).tiny))
    gap = speed - slope * scores
    if config.kind == "ridge":
        local = _fit_ridge(last_layer_inputs(model, data.features).astype(np.float64), gap, data, config.strengths)
    else:
        local = _fit_trees(model, data, gap, config)
    return LocalModel(model, slope, local, len(data), tasks)


def _within_tasks(values: np.ndarray, data: RankingDataset) -> np.ndarray:
    """Values (N,) or (N, d) less their means in the task."""
    result = np.array(values, dtype=np.float64)
    for members in data.members:
        if len(members):
            result[members] -= result[members].mean(axis=0)
    return result


def _fit_trees(model: CostModel, data: RankingDataset, gap: np.ndarray, config: LocalModelConfig) -> TreeModel:
    """Trees over one row a program: statements are a set, primitives a sequence whose places have a meaning."""
    pool = get_architecture(model.arch).inputs == "statements"
    rows, width = data.features.shape[1:]
    trees = create(
        "xgboost", width=width, hardware=model.config.hardware and rows > 1, pool=pool, rows=rows,
        objective="reg:squarederror", rounds=config.rounds, max_depth=config.max_depth, eta=config.eta,
        min_child_weight=1.0, gamma=0.0,
    )  # fmt: skip
    assert isinstance(trees, TreeModel)
    return trees.fit(data.features, gap, data.group)


def _fit_ridge(embeddings: np.ndarray, gap: np.ndarray, data: RankingDataset, strengths: tuple[float, ...]) -> Ridge:
    """The ridge of least squared error on labels left out one at a time, which its eigenvectors tell at once."""
    mean, scale = embeddings.mean(axis=0), np.maximum(embeddings.std(axis=0), 1e-6)
    x = _within_tasks((embeddings - mean) / scale, data)
    left, singular, right = np.linalg.svd(x, full_matrices=False)
    projected = left.T @ gap
    best: tuple[float, float, np.ndarray] | None = None
    for strength in strengths:
        shrink = singular**2 / (singular**2 + strength * len(x))
        error = (gap - left @ (shrink * projected)) / np.maximum(1 - (left**2) @ shrink, 1e-6)
        if best is None or error @ error < best[0]:
            kept = singular / (singular**2 + strength * len(x))
            best = float(error @ error), strength, right.T @ (kept * projected)
    assert best is not None
    return Ridge(best[2], mean, scale, best[1])
