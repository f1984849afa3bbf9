"""The guard: an adapted model replaces its base only where measured programs say that it ranks better."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..training.metrics import PAIR_RATIO
from .errors import LabelError


@dataclass(frozen=True)
class GuardResult:
    """The verdict, in pairwise accuracy on programs that neither model has learnt from.

    Attributes:
        decision: `adapted` or `kept` (the base model).
        base, adapted: mean over tasks of the share of pairs in the right order; a tied score is half right.
        gain: adapted - base.
        interval: bounds of the gain at `level`, by bootstrap over tasks and over programs within them.
        level: of the interval, e.g. 0.9.
        tasks, programs, pairs: what it was measured on.
        reason: the decision in one sentence.
    """

    decision: str
    base: float
    adapted: float
    gain: float
    interval: tuple[float, float]
    level: float
    tasks: int
    programs: int
    pairs: int
    reason: str

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self) | {"interval": list(self.interval)}


def compare(
    base: np.ndarray,
    adapted: np.ndarray,
    latency: np.ndarray,
    group: np.ndarray,
    *,
    level: float = 0.9,
    resamples: int = 2000,
    seed: int = 0,
) -> GuardResult:
    """Compare two models on held-out programs; keep the base unless the adapted one gained.

    Only pairs whose latencies differ by more than the noise of measuring count (as in
    `zoo.training.metrics.pairwise_accuracy`). The interval says how sure the gain is; the decision follows
    the gain itself, since a hold-out small enough to be affordable seldom makes a true gain certain.

    Args:
        base, adapted: (N,) scores, higher is faster.
        latency: (N,) seconds.
        group: (N,) task of each program.
        level: of the interval.
        resamples: of the bootstrap.
        seed: of the bootstrap.

    Raises:
        LabelError: a latency is not a positive number, or no two held-out programs of a task differ.
    """
    if not (np.isfinite(latency) & (np.asarray(latency) > 0)).all():
        raise LabelError(
            "a held-out latency is not a positive number", remedy="leave failed programs out of the hold-out"
        )
    tasks = _tasks(base, adapted, latency, group)
    if not tasks:
        raise LabelError(
            f"none of the {len(latency)} held-out programs differ in latency by more than the noise",
            remedy="a larger --budget holds out more programs; `tchub doctor` shows the noise of the clock",
            programs=len(latency),
        )
    pairs = [float(faster.sum()) for faster, _, _ in tasks]
    before = float(np.mean([right.sum() / n for (_, right, _), n in zip(tasks, pairs, strict=True)]))
    after = float(np.mean([right.sum() / n for (_, _, right), n in zip(tasks, pairs, strict=True)]))
    finite = bool(np.isfinite(adapted).all())
    interval = _bootstrap(tasks, level, resamples, seed)
    better = finite and after > before
    return GuardResult(
        decision="adapted" if better else "kept",
        base=before,
        adapted=after,
        gain=after - before,
        interval=interval,
        level=level,
        tasks=len(tasks),
        programs=len(latency),
        pairs=int(sum(pairs)),
        reason=_reason(finite, after - before, interval, level),
    )


_Task = tuple[np.ndarray, np.ndarray, np.ndarray]


def _tasks(base: np.ndarray, adapted: np.ndarray, latency: np.ndarray, group: np.ndarray) -> list[_Task]:
    """For each task with a pair: which ordered pairs count, and how right either model is; all (n, n)."""
    found = []
    for task in np.unique(group):
        at = np.flatnonzero(np.asarray(group) == task)
        seconds = np.asarray(latency, dtype=np.float64)[at]
        faster = (seconds[:, None] * PAIR_RATIO < seconds[None, :]).astype(np.float64)
        if faster.any():
            found.append((faster, faster * _ahead(base[at]), faster * _ahead(adapted[at])))
    return found


def _ahead(scores: np.ndarray) -> np.ndarray:
    """1 where row scores higher than column, 1/2 where equal; a score that is not a number ranks last."""
    s = np.nan_to_num(np.asarray(scores, dtype=np.float64), nan=-np.inf, posinf=np.inf, neginf=-np.inf)
    return np.where(s[:, None] == s[None, :], 0.5, (s[:, None] > s[None, :]).astype(np.float64))


def _bootstrap(tasks: list[_Task], level: float, resamples: int, seed: int) -> tuple[float, float]:
    """Percentile interval of the gain: tasks drawn with return, and programs with return within each task."""
    rng = np.random.default_rng(seed)
    gains = np.empty((len(tasks), resamples))
    for row, (faster, before, after) in enumerate(tasks):
        n = len(faster)
        drawn = rng.multinomial(n, np.full(n, 1 / n), size=resamples).astype(np.float64)
        # A program drawn c times stands in c times as many pairs: a quadratic form in the counts.
        pairs = ((drawn @ faster) * drawn).sum(1)
        gain = ((drawn @ (after - before)) * drawn).sum(1)
        gains[row] = np.divide(gain, pairs, out=np.full(resamples, np.nan), where=pairs > 0)
    picks = rng.integers(len(tasks), size=gains.shape)
    chosen = np.take_along_axis(gains, picks, axis=0)
    usable = ~np.isnan(chosen).all(axis=0)
    means = np.nanmean(chosen[:, usable], axis=0)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _reason(finite: bool, gain: float, interval: tuple[float, float], level: float) -> str:
    bounds = f"{level:.0%} interval {interval[0]:+.3f} to {interval[1]:+.3f}"
    if not finite:
        return "the adapted model's predictions are not numbers; the base model is kept"
    if gain <= 0:
        return f"the held-out pairwise accuracy did not rise ({gain:+.3f}, {bounds}); the base model is kept"
    sure = "" if interval[0] > 0 else "; the gain is within the uncertainty of this hold-out"
    return f"the held-out pairwise accuracy rose by {gain:.3f} ({bounds}){sure}"
