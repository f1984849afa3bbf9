"""TenSet's transfer, a baseline: the pretrained model stays, and a small local model of the device predicts the gap.

TLP, section 5.1, names it beside fine-tuning and multi-task learning.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from tchub.zoo.adapt.fine_tune import check_features, check_labels
from tchub.zoo.adapt.sampling.predictions import last_layer_inputs
from tchub.zoo.models import CostModel, XGBoostRanker
from tchub.zoo.training import RankingDataset

# Of the ridge, relative to the embeddings' variance; labels left out one at a time choose.
STRENGTHS = (0.1, 1.0, 10.0, 100.0, 1e3, 1e4)
# Scores (N,) of programs (N, rows, width).
Scorer = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class LocalModelConfig:
    """Settings of the model of the gap, chosen on validation tasks.

    Attributes:
        kind: "trees" on the features, or "ridge" on the model's embeddings.
        rounds, max_depth: of the trees, boosted on the squared error; eta: their step.
    """

    kind: str = "trees"
    rounds: int = 30
    max_depth: int = 3
    eta: float = 0.1


def fit_local(model: CostModel, data: RankingDataset, config: LocalModelConfig | None = None) -> Scorer:
    """Fit a local model to measured programs; return estimates of -log(latency) up to the level of the task.

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
    correct = (_fit_ridge if config.kind == "ridge" else _fit_trees)(model, data, speed - slope * scores, config)
    return lambda features: slope * model.score(features) + correct(features)


def _fit_trees(model: CostModel, data: RankingDataset, gap: np.ndarray, config: LocalModelConfig) -> Scorer:
    hardware = model.config.hardware and data.features.shape[1] > 1
    trees = XGBoostRanker(
        False, hardware, config.rounds, objective="reg:squarederror", max_depth=config.max_depth, eta=config.eta,
        min_child_weight=1.0, gamma=0.0,
    )  # fmt: skip
    return trees.fit(data.features, gap, data.group).score


def _within_tasks(values: np.ndarray, data: RankingDataset) -> np.ndarray:
    """Values (N,) or (N, d) less their means in the task."""
    result = np.array(values, dtype=np.float64)
    for members in data.members:
        if len(members):
            result[members] -= result[members].mean(axis=0)
    return result


def _fit_ridge(model: CostModel, data: RankingDataset, gap: np.ndarray, _: LocalModelConfig) -> Scorer:
    """The ridge of least squared error on labels left out one at a time, by its eigenvectors."""
    embeddings = last_layer_inputs(model, data.features).astype(np.float64)
    mean, scale = embeddings.mean(axis=0), np.maximum(embeddings.std(axis=0), 1e-6)
    x = _within_tasks((embeddings - mean) / scale, data)
    left, singular, right = np.linalg.svd(x, full_matrices=False)
    projected = left.T @ gap
    candidates: list[tuple[float, np.ndarray]] = []
    for strength in STRENGTHS:
        shrink = singular**2 / (singular**2 + strength * len(x))
        error = (gap - left @ (shrink * projected)) / np.maximum(1 - (left**2) @ shrink, 1e-6)
        kept = singular / (singular**2 + strength * len(x))
        candidates.append((float(error @ error), right.T @ (kept * projected)))
    weights = min(candidates, key=lambda one: one[0])[1]
    return lambda features: ((last_layer_inputs(model, features) - mean) / scale) @ weights
