"""The guard: an adapted model replaces its base only where measured programs say that it ranks better.

The rule, in the order in which it is applied (`compare`):

1. Scores that are not numbers: kept.
2. No gain in the hold-out's pairwise accuracy: kept.
3. The programs that the adapted model puts first in each task are slower than the base's, beyond doubt (the whole
   interval): kept. Tuning builds what is put first, so a better order of the rest would not make up for it. Who is
   first hangs on the few programs that were held out, so that one task alone is seldom beyond doubt.
4. A gain whose interval reaches below zero, unless models learnt on parts of the labels ranked the other parts better
   than the base (`cross_validation.nested_gain`): kept, also where the labels were too few to tell. Two measurements
   that share no program must then agree, so a model that learnt nothing is stored about one time in four instead of
   one in two; one that learnt is not asked for certainty, which an affordable hold-out seldom gives. Labels that chose
   a start among several checkpoints (`--sources`), or left out a corpus that misleads, are among those: there the
   second measurement is a little hopeful.
5. Adapted otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from scipy import stats

from ..training.metrics import PAIR_RATIO
from .errors import LabelError

# From so many tasks on their spread tells the uncertainty; of fewer it does while each has few programs to draw from.
ENOUGH_TASKS, ENOUGH_PROGRAMS = 6, 8


@dataclass(frozen=True)
class GuardResult:
    """The verdict, in pairwise accuracy on programs that neither model has learnt from.

    Attributes:
        decision: `adapted` or `kept` (the base model).
        base, adapted: mean over tasks of the share of pairs in the right order; a tied score is half right.
        gain: adapted - base; interval: its bounds at `level`, see `_interval`.
        tasks, programs, pairs: counts of the hold-out.
        reason: the decision in one sentence.
        first_gain: change of the mean over tasks of best latency / latency of the program put first; first_interval:
            its bounds at `level`, computed in the same way.
        learnt_gain: gain of models learnt on parts of the labels on the other parts; None: too few labels to tell.
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
    first_gain: float = 0.0
    first_interval: tuple[float, float] = (0.0, 0.0)
    learnt_gain: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self) | {"interval": list(self.interval), "first_interval": list(self.first_interval)}


def compare(
    base: np.ndarray,
    adapted: np.ndarray,
    latency: np.ndarray,
    group: np.ndarray,
    *,
    level: float = 0.9,
    resamples: int = 2000,
    seed: int = 0,
    learnt_gain: float | None = None,
) -> GuardResult:
    """Compare two models on held-out programs, and decide by the rule of this module.

    Only pairs whose latencies differ by more than the noise of measuring count (as in
    `zoo.training.metrics.pairwise_accuracy`).

    Args:
        base, adapted: (N,) scores, higher is faster; latency: (N,) seconds; group: (N,) task of each program.
        level: of the intervals; resamples, seed: of the bootstrap, where there is one.
        learnt_gain: cross-validated gain in pairwise accuracy on the programs learnt from; None: not known.

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
    pairs = np.array([faster.sum() for faster, _, _ in tasks])
    before = float(np.mean([right.sum() for _, right, _ in tasks] / pairs))
    after = float(np.mean([right.sum() for _, _, right in tasks] / pairs))
    putting_first = _putting_first(base, adapted, latency, group)
    result = GuardResult(
        decision="kept",
        base=before,
        adapted=after,
        gain=after - before,
        interval=_interval(_pair_gains(tasks), level, resamples, seed),
        level=level,
        tasks=len(tasks),
        programs=len(latency),
        pairs=int(pairs.sum()),
        reason="",
        first_gain=float(np.mean([gain(np.ones((1, programs))) for programs, gain in putting_first])),
        first_interval=_interval(putting_first, level, resamples, seed),
        learnt_gain=learnt_gain,
    )
    decision, reason = _decide(result, bool(np.isfinite(adapted).all()))
    return replace(result, decision=decision, reason=reason)


_Task = tuple[np.ndarray, np.ndarray, np.ndarray]


def _tasks(base: np.ndarray, adapted: np.ndarray, latency: np.ndarray, group: np.ndarray) -> list[_Task]:
    """For each task with a pair: which ordered pairs count, and how right either model is; all (n, n)."""
    tasks = []
    for task in np.unique(group):
        own = np.flatnonzero(np.asarray(group) == task)
        seconds = np.asarray(latency, dtype=np.float64)[own]
        faster = (seconds[:, None] * PAIR_RATIO < seconds[None, :]).astype(np.float64)
        if faster.any():
            tasks.append((faster, faster * _ahead(base[own]), faster * _ahead(adapted[own])))
    return tasks


def _ahead(scores: np.ndarray) -> np.ndarray:
    """1 where row scores higher than column, 1/2 where equal; a score that is not a number ranks last."""
    s = _finite(scores)
    return np.where(s[:, None] == s[None, :], 0.5, (s[:, None] > s[None, :]).astype(np.float64))


def _finite(scores: np.ndarray) -> np.ndarray:
    return np.nan_to_num(np.asarray(scores, dtype=np.float64), nan=-np.inf, posinf=np.inf, neginf=-np.inf)


# Programs of a task, and its gain (R,) when each program (R, n) is drawn so often; NaN where there is no pair.
_Gain = tuple[int, Callable[[np.ndarray], np.ndarray]]


def _pair_gains(tasks: list[_Task]) -> list[_Gain]:
    """Per task, the change of the share of pairs in the right order."""

    def gain_of(faster: np.ndarray, before: np.ndarray, after: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        def gain(drawn: np.ndarray) -> np.ndarray:
            # A program drawn c times stands in c times as many pairs: a quadratic form in the counts.
            pairs, change = (((drawn @ matrix) * drawn).sum(1) for matrix in (faster, after - before))
            return np.divide(change, pairs, out=np.full(len(drawn), np.nan), where=pairs > 0)

        return gain

    return [(len(task[0]), gain_of(*task)) for task in tasks]


def _putting_first(base: np.ndarray, adapted: np.ndarray, latency: np.ndarray, group: np.ndarray) -> list[_Gain]:
    """Per task, the change of best latency / latency of the program put first."""

    def gain_of(own: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        return lambda drawn: _share(adapted[own], latency[own], drawn) - _share(base[own], latency[own], drawn)

    members = (np.flatnonzero(np.asarray(group) == task) for task in np.unique(group))
    return [(len(own), gain_of(own)) for own in members]


def _share(scores: np.ndarray, seconds: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """(R,) best latency / latency of the program put first, of those drawn (R, n); expected over ties."""
    _, rank = np.unique(_finite(scores), return_inverse=True)
    first = np.where(drawn > 0, rank, -1).max(axis=1, keepdims=True)
    tied = drawn * (rank == first)
    best = np.where(drawn > 0, seconds, np.inf).min(axis=1)
    return best * (tied @ (1 / seconds)) / tied.sum(axis=1)


def _interval(tasks: list[_Gain], level: float, resamples: int, seed: int) -> tuple[float, float]:
    """Bounds of the mean gain over tasks.

    By Student's t from task to task, which has in it what a task's few programs leave to chance; of few tasks with many
    programs each by bootstrap over the programs, the tasks being taken as they are. Drawing tasks and programs both
    would count that chance twice.
    """
    programs = sum(n for n, _ in tasks) / len(tasks)
    if len(tasks) >= ENOUGH_TASKS or (len(tasks) > 1 and programs < ENOUGH_PROGRAMS):
        gains = [float(gain(np.ones((1, n)))[0]) for n, gain in tasks]
        mean, error = np.mean(gains), np.std(gains, ddof=1) / np.sqrt(len(gains))
        half = float(stats.t.ppf((1 + level) / 2, len(gains) - 1) * error)
        return max(-1.0, float(mean) - half), min(1.0, float(mean) + half)
    rng = np.random.default_rng(seed)
    drawn = np.stack([gain(_resampled(n, resamples, rng)) for n, gain in tasks])
    usable = ~np.isnan(drawn).all(axis=0)
    low, high = np.quantile(np.nanmean(drawn[:, usable], axis=0), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _resampled(n: int, resamples: int, rng: np.random.Generator) -> np.ndarray:
    """(R, n) float64: how often each of n programs is drawn, with return."""
    return rng.multinomial(n, np.full(n, 1 / n), size=resamples).astype(np.float64)


def _decide(result: GuardResult, finite: bool) -> tuple[str, str]:
    """The rule: decision and reason."""
    gain, (low, high) = result.gain, result.interval
    bounds = f"{result.level:.0%} interval {low:+.3f} to {high:+.3f}"
    if not finite:
        return "kept", "the adapted model's predictions are not numbers; the base model is kept"
    if gain <= 0:
        return "kept", f"the held-out pairwise accuracy did not rise ({gain:+.3f}, {bounds}); the base model is kept"
    if result.first_interval[1] < 0:
        worst = f"{result.first_interval[0]:+.3f} to {result.first_interval[1]:+.3f}"
        return "kept", (
            f"the held-out pairwise accuracy rose by {gain:.3f}, but the programs put first are slower "
            f"({result.first_gain:+.3f} of the best, {worst}); the base model is kept"
        )
    rose = f"the held-out pairwise accuracy rose by {gain:.3f} ({bounds})"
    if low > 0:
        return "adapted", rose
    unsure = f"{rose}, which is within the uncertainty of this hold-out, and "
    if result.learnt_gain is None:
        return "kept", f"{unsure}the programs learnt from are too few to cross-validate; the base model is kept"
    seen = f"cross-validation on the programs learnt from shows {result.learnt_gain:+.3f}"
    if result.learnt_gain <= 0:
        return "kept", f"{unsure}{seen}; the base model is kept"
    return "adapted", f"{unsure}{seen}, which confirms it"
