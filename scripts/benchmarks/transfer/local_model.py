"""TenSet's transfer, a baseline: the pretrained model stays, and a small local model of the device predicts the gap.

TLP, section 5.1, names it beside fine-tuning and multi-task learning.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tchub.zoo.adapt.fine_tune import check_features, check_labels
from tchub.zoo.adapt.sampling.predictions import last_layer_inputs
from tchub.zoo.models import CostModel, XGBoostRanker, get_architecture
from tchub.zoo.training import RankingDataset


@dataclass(frozen=True)
class LocalModelConfig:
    """Settings of the model of the gap, chosen on validation tasks.

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


@dataclass(frozen=True)
class Ridge:
    """A linear map of standardised embeddings: weights (d,), mean (d,), scale (d,)."""

    weights: np.ndarray
    mean: np.ndarray
    scale: np.ndarray
    strength: float

    def predict(self, embeddings: np.ndarray) -> np.ndarray:
        """Return (N,) for embeddings (N, d)."""
        return ((embeddings - self.mean) / self.scale) @ self.weights


@dataclass(frozen=True)
class LocalModel:
    """A pretrained model and its correction.

    Attributes:
        model: the pretrained one.
        slope: -log(latency) a unit of its score, at least 0: scores of most losses have no unit.
        gap: the trees, or the ridge.
    """

    model: CostModel
    slope: float
    gap: XGBoostRanker | Ridge

    def score(self, features: np.ndarray) -> np.ndarray:
        """Return estimates of -log(latency) up to the level of the task, (N,) float64 for (N, rows, width)."""
        base = self.slope * self.model.score(features)
        if isinstance(self.gap, XGBoostRanker):
            return base + self.gap.score(features)
        return base + self.gap.predict(last_layer_inputs(self.model, features))


def fit_local(model: CostModel, data: RankingDataset, config: LocalModelConfig | None = None) -> LocalModel:
    """Fit a local model to measured programs. Deterministic.

    The gap is -log(latency) less the model's score times a slope fitted to the same programs, both with their
    means in the task taken off: a score has no level. Tasks of one program thus teach nothing.

    Raises:
        AdaptError: the programs are of other features than the model's.
        LabelError: no task has two programs of different latency, or a latency is NaN.
    """
    config = config or LocalModelConfig()
    check_features(model, data)
    check_labels(data)
    scores, speed = _within_tasks(model.score(data.features), data), _within_tasks(-np.log(data.latency), data)
    slope = max(0.0, float(scores @ speed) / max(float(scores @ scores), np.finfo(np.float64).tiny))
    gap = speed - slope * scores
    if config.kind == "ridge":
        embeddings = last_layer_inputs(model, data.features).astype(np.float64)
        return LocalModel(model, slope, _fit_ridge(embeddings, gap, data, config.strengths))
    # Statements are a set; primitives are a sequence whose positions have a meaning.
    pool = get_architecture(model.arch).inputs == "statements"
    hardware = model.config.hardware and data.features.shape[1] > 1
    trees = XGBoostRanker(
        pool, hardware, config.rounds, objective="reg:squarederror", max_depth=config.max_depth, eta=config.eta,
        min_child_weight=1.0, gamma=0.0,
    )  # fmt: skip
    return LocalModel(model, slope, trees.fit(data.features, gap, data.group))


def _within_tasks(values: np.ndarray, data: RankingDataset) -> np.ndarray:
    """Values (N,) or (N, d) less their means in the task."""
    result = np.array(values, dtype=np.float64)
    for members in data.members:
        if len(members):
            result[members] -= result[members].mean(axis=0)
    return result


def _fit_ridge(embeddings: np.ndarray, gap: np.ndarray, data: RankingDataset, strengths: tuple[float, ...]) -> Ridge:
    """The ridge of least squared error on labels left out one at a time, by its eigenvectors."""
    mean, scale = embeddings.mean(axis=0), np.maximum(embeddings.std(axis=0), 1e-6)
    x = _within_tasks((embeddings - mean) / scale, data)
    left, singular, right = np.linalg.svd(x, full_matrices=False)
    projected = left.T @ gap
    candidates: list[tuple[float, float, np.ndarray]] = []
    for strength in strengths:
        shrink = singular**2 / (singular**2 + strength * len(x))
        error = (gap - left @ (shrink * projected)) / np.maximum(1 - (left**2) @ shrink, 1e-6)
        kept = singular / (singular**2 + strength * len(x))
        candidates.append((float(error @ error), strength, right.T @ (kept * projected)))
    _, strength, weights = min(candidates, key=lambda one: one[0])
    return Ridge(weights, mean, scale, strength)
