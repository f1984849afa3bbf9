"""Distances in embedding space to the nearest of many programs, kept up to date while programs are picked."""

from __future__ import annotations

import numpy as np

# Rows of a block of pairs: bounds the memory.
_ROWS = 4096
# Labeled programs that stand for all of them when there are more.
MAX_ANCHORS = 2048


def nearest(points: np.ndarray, anchors: np.ndarray) -> np.ndarray:
    """(n,) distance of each point to the nearest anchor; infinite without anchors. O(n m d).

    Args:
        points: (n, d); anchors: (m, d).
    """
    found = np.full(len(points), np.inf)
    if not len(anchors):
        return found
    norms = (anchors**2).sum(axis=1)
    for start in range(0, len(points), _ROWS):
        block = points[start : start + _ROWS]
        squares = (block**2).sum(axis=1)[:, None] + norms - 2 * block @ anchors.T
        found[start : start + _ROWS] = np.sqrt(np.maximum(squares.min(axis=1), 0))
    return found


def some_of(indices: np.ndarray, most: int, rng: np.random.Generator) -> np.ndarray:
    """The indices, or as many as allowed of them drawn at random."""
    return indices if len(indices) <= most else rng.choice(indices, size=most, replace=False)
