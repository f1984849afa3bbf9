"""The measured validation part of a fine-tuning: programs held back from each task, and how well they are ranked."""

from __future__ import annotations

import numpy as np

from ..models import CostModel
from ..training.dataset import RankingDataset
from ..training.metrics import count_pairs, pair_share

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
    pairs = sum(count_pairs(data.latency[members], held[members]) for members in data.members)
    return held if pairs >= max(1, min_pairs) else None


def held_accuracy(model: CostModel, data: RankingDataset, held: np.ndarray) -> float:
    """Mean over tasks of the share of pairs in the right order; a tie is half right.

    Pairs of a held program with one that was learnt from count too: a task with two held programs makes one pair of
    them alone, and a dozen with the rest.
    """
    scores = model.score(data.features)
    shares = [pair_share(scores[own], data.latency[own], held[own]) for own in data.members]
    return float(np.mean([share for share in shares if share is not None]))


def smooth(curve: list[float]) -> np.ndarray:
    """Mean of each pass and its neighbours: one lucky pass among noisy ones does not decide."""
    padded = np.pad(np.asarray(curve), 1, mode="edge")
    return np.convolve(padded, np.full(3, 1 / 3), mode="valid")
