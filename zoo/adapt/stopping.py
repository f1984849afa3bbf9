"""`--budget auto`: when one more round of measuring costs more than the faster programs it is expected to bring.

After every round the model is asked which of `CHOICE` held-out programs of a task it would take, and how much slower
that program is than the fastest of them: the slowdown of the network, an expectation over all such choices, hence a
smooth number even of a small hold-out. Slowdown against labels is a learning curve,

    slowdown(n) = floor + slope * n^-power,      floor, slope >= 0,

fitted by least squares over the rounds so far. The next round is expected to gain

    slowdown(n) - slowdown(n + round)  percent of the network's latency,

and is worth `worth` seconds for each. It is made while that is more than the seconds it takes to measure and learn.
The hold-out decides here how many rounds there are, never which of the rounds' models is taken: the last one is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

# Programs of a task to choose among; the least that a hold-out has of one.
CHOICE = 4
# A round may cost this many seconds for each 1% of latency that it is expected to save, by default.
WORTH = 60.0
POWERS = tuple(np.linspace(0.1, 1.0, 10).tolist())


@dataclass(frozen=True)
class LearningPoint:
    """One round: labels and seconds of measuring so far; slowdown and held-out pairwise accuracy of the model."""

    labels: int
    seconds: float
    slowdown: float
    pairwise: float


@dataclass(frozen=True)
class StopDecision:
    """The decision whether one more round is worth its time.

    Attributes:
        labels: learnt from when it was made.
        gain: expected of the next round, share of the network's latency; None: too few points.
        cost: seconds of the next round; worth: seconds that the gain is worth.
    """

    stop: bool
    labels: int
    gain: float | None
    cost: float
    worth: float
    reason: str

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


def slowdown(scores: np.ndarray, latency: np.ndarray, group: np.ndarray, weights: np.ndarray) -> float:
    """Return the share by which a network is slower with the model's choices than with the best ones.

    Of each task every choice of `CHOICE` of its programs (all, if it has fewer) is equally likely; of each choice the
    best-scored program is taken. Both expectations are in closed form: the program of rank r is the first of a choice
    of m among n with probability C(n - 1 - r, m - 1) / C(n, m).

    Args:
        scores: (N,) higher is faster; latency: (N,) seconds; group: (N,) task; weights: (T,) of the tasks.
    """
    taken = best = 0.0
    for task in np.unique(group):
        own = np.flatnonzero(group == task)
        chance = _first_of_choice(len(own), min(CHOICE, len(own)))
        # Equal scores are taken in any order: the mean over each run of them.
        order = own[np.argsort(-scores[own], kind="stable")]
        _, same = np.unique(-scores[order], return_inverse=True)
        level = np.bincount(same, latency[order]) / np.bincount(same)
        taken += float(weights[task]) * float(chance @ level[same])
        best += float(weights[task]) * float(chance @ np.sort(latency[own]))
    return taken / best - 1 if best else 0.0


def _first_of_choice(n: int, m: int) -> np.ndarray:
    """(n,) chance that the program of each rank is the first of m drawn from n."""
    chance = np.zeros(n)
    chance[0] = m / n
    for rank in range(1, n - m + 1):
        chance[rank] = chance[rank - 1] * (n - rank - m + 1) / (n - rank)
    return chance


def expected_slowdown(points: Sequence[LearningPoint], labels: int) -> float:
    """Return the curve, fitted to two points or more of different labels, at 1 label or more."""
    points = [point for point in points if point.labels > 0]
    n = np.array([point.labels for point in points], dtype=np.float64)
    y = np.array([point.slowdown for point in points])
    fits = [(*_fit(n**-power, y), power) for power in POWERS]
    _, floor, slope, power = min(fits)
    return floor + slope * labels**-power


def _fit(x: np.ndarray, y: np.ndarray) -> tuple[float, float, float]:
    """(error, floor, slope), both at least 0, of y = floor + slope x with the smallest squared error."""
    centred = x - x.mean()
    spread = float(centred @ centred)
    slope = max(0.0, float(centred @ y) / spread) if spread > 0 else 0.0
    floor = float(y.mean() - slope * x.mean())
    if floor < 0:
        floor, slope = 0.0, max(0.0, float(x @ y) / float(x @ x))
    return float(np.square(y - floor - slope * x).sum()), floor, slope


def decide(points: Sequence[LearningPoint], count: int, cost: float, worth: float, least: int) -> StopDecision:
    """Decide whether to measure one more round of `count` programs.

    Args:
        points: of the rounds so far, in their order.
        cost: seconds of measuring and learning them; worth: seconds that 1% of the network's latency is worth.
        least: points with labels before anything is decided; at least 2, and of two different numbers of labels.
    """
    labels = points[-1].labels if points else 0
    telling = [point.labels for point in points if point.labels > 0]
    if len(telling) < max(2, least) or len(set(telling)) < 2:
        reason = f"{len(telling)} rounds with labels so far; {max(2, least)} of unlike numbers of labels tell the curve"
        return StopDecision(False, labels, None, cost, worth, reason)
    gain = max(0.0, expected_slowdown(points, labels) - expected_slowdown(points, labels + count))
    value = 100 * gain * worth
    reason = (
        f"{count} more programs are expected to gain {100 * gain:.2f}% of the latency, "
        f"worth {value:.0f} s, and take {cost:.0f} s"
    )
    return StopDecision(value < cost, labels, gain, cost, value, reason)
