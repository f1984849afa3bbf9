"""How much may be measured: a share of the pool, a number of programs, a time, or as much as pays (`auto`).

With `auto` the model is asked after every round which of `CHOICE` held-out programs of a task it would take, and how
much slower that program is than the fastest of them: the slowdown of the network, an expectation over all such choices,
hence a smooth number even of a small hold-out. Slowdown against labels is a learning curve,

    slowdown(n) = floor + slope * n^-power,      floor, slope >= 0,

fitted by least squares over the rounds so far. The next round is expected to gain slowdown(n) - slowdown(n + round) of
the network's latency, and each percent is worth `worth` seconds. It is made while that is more than the seconds it
takes to measure and learn. The hold-out decides here how many rounds there are, never which of the rounds' models is
taken: the last one is.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from .errors import AdaptError

_UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_FORM = re.compile(r"(?P<value>[+-]?(\d+(\.\d*)?|\.\d+))\s*(?P<unit>%|[a-z]*)", re.IGNORECASE)
_REMEDY = "write a share of the pool (10%), a number of programs (200), a time (90s, 15m, 1h) or auto"
# A budget that stops itself stops here at the latest: at the share of a pool, and the labels of a task, beyond which
# few-shot curves are flat.
AUTO_SHARE, AUTO_LABELS = 0.5, 32


@dataclass(frozen=True)
class Budget:
    """A budget of measurements.

    Attributes:
        kind: `share` (of the pool, in (0, 1]), `programs` (a count), `seconds` (of building and running) or `auto`
            (rounds, until one more is not worth its time).
        value: the amount, positive; of `auto` the largest share of the pool.
    """

    kind: Literal["share", "programs", "seconds", "auto"]
    value: float
    text: str

    def programs(self, pool_size: int) -> int | None:
        """Return how many programs of a pool may be measured; at least one, at most all. None for a time.

        A share is rounded to the nearest count. Of `auto` it is the most that it measures.
        """
        if self.kind == "seconds":
            return None
        count = self.value if self.kind == "programs" else self.value * pool_size
        return min(pool_size, max(1, math.floor(count + 0.5)))

    def text_for(self, pool_size: int) -> str:
        """Return the text, and the number of programs where a pool has fewer."""
        if self.kind == "programs" and self.value > pool_size:
            return f"{self.text} (the whole pool: {pool_size})"
        return self.text

    @property
    def seconds(self) -> float:
        """Seconds that may be spent on measuring; infinite for a count or a share."""
        return self.value if self.kind == "seconds" else math.inf


def parse_budget(text: str | int | Budget) -> Budget:
    """Read `10%`, `200`, `90s`, `15m`, `1h` or `auto`.

    Raises:
        AdaptError: not one of the forms, zero, negative, over 100%, or a fraction of a program.
    """
    if isinstance(text, Budget):
        return text
    shown = str(text).strip()
    if shown.lower() == "auto":
        return Budget("auto", AUTO_SHARE, "auto")
    match = _FORM.fullmatch(shown)
    if match is None or isinstance(text, bool):
        raise AdaptError(f"unknown budget {shown!r}", remedy=_REMEDY, budget=shown)
    value, unit = float(match["value"]), match["unit"].lower()
    if value <= 0 or (unit == "%" and value > 100):
        raise AdaptError(
            f"a budget of {shown} allows no measurement, or is more than the whole pool", remedy=_REMEDY, budget=shown
        )
    if unit == "%":
        return Budget("share", value / 100, shown)
    if unit in _UNITS:
        return Budget("seconds", value * _UNITS[unit], shown)
    if unit or not value.is_integer():
        raise AdaptError(f"unknown budget {shown!r}", remedy=_REMEDY, budget=shown)
    return Budget("programs", value, shown)


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
    """The decision whether one more round is worth its time: its gain, share of the latency, its cost, both in seconds.

    The gain is None with too few points.
    """

    stop: bool
    labels: int
    gain: float | None
    cost: float
    worth: float
    reason: str


def slowdown(scores: np.ndarray, latency: np.ndarray, group: np.ndarray, weights: np.ndarray) -> float:
    """Return the share by which a network is slower with the model's choices than with the best ones.

    Of each task every choice of `CHOICE` of its programs (all, if it has fewer) is equally likely; of each choice the
    best-scored program is taken. Both expectations are in closed form (`minimum_chances`).

    Args:
        scores: (N,) higher is faster; latency: (N,) seconds; group: (N,) task; weights: (T,) of the tasks.
    """
    from ..training.metrics import minimum_chances  # brings torch

    taken = best = 0.0
    for task in np.unique(group):
        own = np.flatnonzero(group == task)
        chance = minimum_chances(len(own), min(CHOICE, len(own)))
        # Equal scores are taken in any order: the mean over each run of them.
        order = own[np.argsort(-scores[own], kind="stable")]
        _, same = np.unique(-scores[order], return_inverse=True)
        level = np.bincount(same, latency[order]) / np.bincount(same)
        taken += float(weights[task]) * float(chance @ level[same])
        best += float(weights[task]) * float(chance @ np.sort(latency[own]))
    return taken / best - 1 if best else 0.0


def expected_slowdown(points: Sequence[LearningPoint], labels: int) -> float:
    """Return the curve, fitted to two points or more of different labels, 1 at least, at 1 label or more."""
    from scipy.optimize import nnls

    n = np.array([point.labels for point in points], dtype=np.float64)
    y = np.array([point.slowdown for point in points])
    fits = []
    for power in POWERS:
        (floor, slope), error = nnls(np.stack([np.ones_like(n), n**-power], axis=1), y)
        fits.append((float(error) ** 2, float(floor), float(slope), power))
    _, floor, slope, power = min(fits)
    return floor + slope * labels**-power


def decide(points: Sequence[LearningPoint], count: int, cost: float, worth: float, least: int) -> StopDecision:
    """Decide whether one more round of `count` programs, which takes `cost` seconds, is worth it.

    Args:
        worth: seconds that 1% of the network's latency is worth.
        least: points with labels before anything is decided; at least 2, and of two different numbers of labels.
    """
    labels, least = points[-1].labels if points else 0, max(2, least)
    points = [point for point in points if point.labels > 0]
    if len(points) < least or len({point.labels for point in points}) < 2:
        reason = f"{len(points)} rounds with labels so far; {least} of unlike numbers of labels tell the curve"
        return StopDecision(False, labels, None, cost, worth, reason)
    gain = max(0.0, expected_slowdown(points, labels) - expected_slowdown(points, labels + count))
    value = 100 * gain * worth
    reason = (
        f"{count} more programs are expected to gain {100 * gain:.2f}% of the latency, "
        f"worth {value:.0f} s, and take {cost:.0f} s"
    )
    return StopDecision(value < cost, labels, gain, cost, value, reason)
