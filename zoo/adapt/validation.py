"""The measured validation part of a fine-tuning: programs held back from each task, and how well they are ranked."""

from __future__ import annotations

import numpy as np

from ..models import CostModel
from ..training.dataset import RankingDataset
from ..training.metrics import PAIR_RATIO

HOLD_BY = ("programs", "tasks")


def hold_out(data: RankingDataset, share: float, min_pairs: int, seed: int, by: str = "programs") -> np.ndarray | None:
    """What is held back, (N,) bool; None where it makes fewer than `min_pairs` ordered pairs.

    By "programs" it is a share of each task's, and tasks of fewer than 5 give none; by "tasks" all programs of a
    share of the tasks, and one task at least is left.
    """
    rng = np.random.default_rng(seed)
    held = np.zeros(len(data), dtype=bool)
    if by == "tasks":
        filled = [members for members in data.members if len(members)]
        for place in rng.permutation(len(filled))[: min(round(share * len(filled)), len(filled) - 1)]:
            held[filled[place]] = True
    for members in data.members if by == "programs" and share > 0 else ():
        if len(members) >= 5:
            held[rng.permutation(members)[: max(1, round(share * len(members)))]] = True
    pairs = sum(int(_held_pairs(data, held, members).sum()) for members in data.members)
    return held if pairs >= max(1, min_pairs) else None


def _held_pairs(data: RankingDataset, held: np.ndarray, members: np.ndarray) -> np.ndarray:
    """(n, n) bool: row is faster than column by more than the noise, and one of them is held.

    Pairs of a held program with one that was learnt from count too: a task with two held programs makes one
    pair of them alone, and a dozen with the rest.
    """
    seconds, out = data.latency[members], held[members]
    return (seconds[:, None] * PAIR_RATIO < seconds[None, :]) & (out[:, None] | out[None, :])


def held_accuracy(model: CostModel, data: RankingDataset, held: np.ndarray) -> float:
    """Mean over tasks of the share of `_held_pairs` in the right order; a tie is half right."""
    scores = model.score(data.features)
    shares = []
    for members in data.members:
        pairs = _held_pairs(data, held, members)
        if pairs.any():
            row, column = np.nonzero(pairs)
            ahead = scores[members][row] - scores[members][column]
            shares.append(float(np.mean((np.sign(ahead) + 1) / 2)))
    return float(np.mean(shares))


def smooth(curve: list[float]) -> np.ndarray:
    """Mean of each pass and its neighbours: one lucky pass among noisy ones does not decide."""
    padded = np.pad(np.asarray(curve), 1, mode="edge")
    return np.convolve(padded, np.full(3, 1 / 3), mode="valid")
