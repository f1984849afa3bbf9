"""Scores of unmeasured programs as tuning makes them: with the measured programs of their task, where a model can."""

from __future__ import annotations

import numpy as np

from ..models import ContextModel, CostModel
from ..training.dataset import RankingDataset


def takes_context(model: CostModel) -> bool:
    """Whether tuning hands the measured programs of a task to the model, with no gradient step."""
    return isinstance(model, ContextModel)


def informed_scores(
    model: CostModel,
    features: np.ndarray,
    group: np.ndarray,
    known: RankingDataset,
    known_features: np.ndarray | None = None,
) -> np.ndarray:
    """Scores of programs, given what is measured of their tasks; `score` of a model that takes no context.

    Args:
        model: any model.
        features: (N, rows, width) of the programs to be ranked.
        group: (N,) task of each, counted as in `known`.
        known: measured programs, none of them among those to be ranked.
        known_features: of the measured ones, where this model sees them otherwise than `known` has them.

    Returns:
        (N,) of float64, higher is faster; comparable within a task.
    """
    if not isinstance(model, ContextModel):
        return model.score(features)
    seen = known.features if known_features is None else known_features
    scores = np.empty(len(features))
    for task in np.unique(group):
        at, have = np.flatnonzero(group == task), known.members[task]
        scores[at] = model.score_given(features[at], seen[have], known.latency[have])
    return scores
