"""The guard: an adapted model replaces its base only where measured programs say that it ranks better.

The rule, in the order in which it is applied (`compare`):

1. Scores that are not numbers, or a hold-out in which no pair has an order: kept.
2. No gain in the hold-out's pairwise accuracy: kept.
3. The programs that the adapted model puts first in each task are slower than the base's, beyond doubt (the whole
   interval): kept. Tuning builds what is put first, so a better order of the rest would not make up for it. Who is
   first hangs on the few programs that were held out, so that one task alone is seldom beyond doubt.
4. A gain whose interval reaches below zero, unless models learnt on parts of the labels ranked the other parts better
   than the base (`adapt_model.nested_gain`): kept, also where the labels were too few to tell. Two measurements
   that share no program must then agree, so a model that learnt nothing is stored about one time in four instead of
   one in two; one that learnt is not asked for certainty, which an affordable hold-out seldom gives. Labels that chose
   a start among several checkpoints (`--sources`), or left out a corpus that misleads, are among those: there the
   second measurement is a little hopeful.
5. Adapted otherwise.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from scipy.special import stdtrit

from ..models import ContextModel, CostModel
from ..training import RankingDataset, evaluate_scores
from ..training.evaluation import informed_scores
from ..training.metrics import PAIR_RATIO
from .errors import LabelError

LEVEL = 0.9
# From so many tasks on their spread tells the uncertainty; of fewer it does while each has few programs to draw from.
ENOUGH_TASKS, ENOUGH_PROGRAMS = 6, 8
# Programs of a task, and its gain (R,) when each program (R, n) is drawn so often; NaN where there is no pair.
_Gain = tuple[int, Callable[[np.ndarray], np.ndarray]]


@dataclass(frozen=True)
class GuardResult:
    """The verdict, in pairwise accuracy on programs that neither model has learnt from.

    Attributes:
        decision: `adapted` or `kept` (the base model), with its reason in one sentence.
        base, adapted: mean over tasks of the share of pairs in the right order; a tied score is half right. NaN, as the
            gain and its bounds are, where `pairs` is 0.
        gain: adapted - base; interval: its bounds at `level`, see `_interval`.
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
    first_gain: float
    first_interval: tuple[float, float]
    learnt_gain: float | None


def compare(
    base: np.ndarray,
    adapted: np.ndarray,
    latency: np.ndarray,
    group: np.ndarray,
    *,
    resamples: int = 2000,
    seed: int = 0,
    learnt_gain: float | None = None,
) -> GuardResult:
    """Compare two models on held-out programs, and decide by the rule of this module.

    Only pairs whose latencies differ by more than the noise of measuring count.

    Args:
        base, adapted: (N,) scores, higher is faster; latency: (N,) seconds; group: (N,) task of each program.
        resamples, seed: of the bootstrap, where there is one.
        learnt_gain: cross-validated gain in pairwise accuracy on the programs learnt from; None: not known.

    Raises:
        LabelError: a latency is not a positive number.
    """
    if not (np.isfinite(latency) & (latency > 0)).all():
        raise LabelError(
            "a held-out latency is not a positive number", remedy="leave failed programs out of the hold-out"
        )
    before, after = (np.where(np.isnan(s), -np.inf, s).astype(np.float64) for s in (base, adapted))  # NaN ranks last
    pair_counts, shares, pair_gains, first_gains = [], [], list[_Gain](), list[_Gain]()
    for own in (np.flatnonzero(group == task) for task in np.unique(group)):
        seconds = latency[own].astype(np.float64)
        first_gains.append((len(own), partial(_first_gain, before[own], after[own], seconds)))
        faster = (seconds[:, None] * PAIR_RATIO < seconds[None, :]).astype(np.float64)
        if faster.any():
            was, now = faster * _ahead(before[own]), faster * _ahead(after[own])
            pair_counts.append(faster.sum())
            shares.append((was.sum() / faster.sum(), now.sum() / faster.sum()))
            pair_gains.append((len(own), partial(_pair_gain, faster, now - was)))
    right = [_mean([share[model] for share in shares]) for model in (0, 1)]
    result = GuardResult(
        decision="kept",
        base=right[0],
        adapted=right[1],
        gain=right[1] - right[0],
        interval=_interval(pair_gains, resamples, seed),
        level=LEVEL,
        tasks=len(pair_gains),
        programs=len(latency),
        pairs=int(sum(pair_counts)),
        reason="",
        first_gain=_mean([float(gain(np.ones((1, programs)))[0]) for programs, gain in first_gains]),
        first_interval=_interval(first_gains, resamples, seed),
        learnt_gain=learnt_gain,
    )
    decision, reason = _decide(result, bool(np.isfinite(adapted).all()))
    return replace(result, decision=decision, reason=reason)


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else math.nan


def _ahead(scores: np.ndarray) -> np.ndarray:
    """Return 1 where row scores higher than column, 1/2 where equal."""
    above, equal = scores[:, None] > scores[None, :], scores[:, None] == scores[None, :]
    return np.where(equal, 0.5, above.astype(np.float64))


def _pair_gain(faster: np.ndarray, change: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """Return the change of the share of a task's pairs in the right order; all matrices (n, n)."""
    # A program drawn c times stands in c times as many pairs: a quadratic form in the counts.
    pairs, gained = (((drawn @ matrix) * drawn).sum(1) for matrix in (faster, change))
    return np.divide(gained, pairs, out=np.full(len(drawn), np.nan), where=pairs > 0)


def _first_gain(before: np.ndarray, after: np.ndarray, seconds: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """Return the change of best latency / latency of the program put first; expected over ties."""
    best, shares = np.where(drawn > 0, seconds, np.inf).min(axis=1), []
    for scores in (after, before):
        _, rank = np.unique(scores, return_inverse=True)
        first = np.where(drawn > 0, rank, -1).max(axis=1, keepdims=True)
        tied = drawn * (rank == first)
        shares.append(best * (tied @ (1 / seconds)) / tied.sum(axis=1))
    return shares[0] - shares[1]


def _interval(tasks: list[_Gain], resamples: int, seed: int) -> tuple[float, float]:
    """Return bounds of the mean gain over tasks, at `LEVEL`.

    By Student's t from task to task, which has in it what a task's few programs leave to chance; of few tasks with many
    programs each by bootstrap over the programs, the tasks being taken as they are. Drawing tasks and programs both
    would count that chance twice.
    """
    if not tasks:
        return math.nan, math.nan
    programs = sum(n for n, _ in tasks) / len(tasks)
    if len(tasks) >= ENOUGH_TASKS or (len(tasks) > 1 and programs < ENOUGH_PROGRAMS):
        gains = [float(gain(np.ones((1, n)))[0]) for n, gain in tasks]
        mean, error = np.mean(gains), np.std(gains, ddof=1) / np.sqrt(len(gains))
        half = float(stdtrit(len(gains) - 1, (1 + LEVEL) / 2) * error)  # Student's t
        return max(-1.0, float(mean) - half), min(1.0, float(mean) + half)
    rng = np.random.default_rng(seed)
    counts = (rng.multinomial(n, np.full(n, 1 / n), size=resamples).astype(np.float64) for n, _ in tasks)
    drawn = np.stack([gain(count) for count, (_, gain) in zip(counts, tasks, strict=True)])
    usable = ~np.isnan(drawn).all(axis=0)
    low, high = np.quantile(np.nanmean(drawn[:, usable], axis=0), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _decide(result: GuardResult, finite: bool) -> tuple[str, str]:
    """Apply the rule; return decision and reason."""
    gain, (low, high) = result.gain, result.interval
    bounds = f"{result.level:.0%} interval {low:+.3f} to {high:+.3f}"
    if not finite:
        return "kept", "the adapted model's predictions are not numbers; the base model is kept"
    if not result.pairs:
        return "kept", (
            f"no two of the {result.programs} held-out programs differ in latency by more than the noise, so that "
            "nothing tells which model is better; the base model is kept. A larger budget holds out more programs"
        )
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


# The comparison of an adaptation --------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelFeatures:
    """A model, features (N, rows, width) of hold-out and learnt programs as it sees them, and (T,) trusted tasks."""

    model: CostModel
    held: np.ndarray
    known: np.ndarray
    trusted: np.ndarray | None = None

    def scores(self, held: RankingDataset, known: RankingDataset) -> np.ndarray:
        """Return (H,) scores of the hold-out as tuning has them: in context where the model takes any."""
        return informed_scores(self.model, self.held, held.group, known, self.known, self.trusted)

    def alone(self, held: RankingDataset) -> np.ndarray:
        """Return (H,) scores of the hold-out without context; equal where they do not count."""
        scores = self.model.score(self.held)
        return scores if self.trusted is None else np.where(self.trusted[held.group], scores, 0.0)


@dataclass(frozen=True)
class AccuracyChange:
    """Pairwise accuracy on some programs before and after a change of the model, and bounds at `LEVEL` of the gain."""

    before: float
    after: float
    interval: tuple[float, float]

    @property
    def fell(self) -> bool:
        """True if the model ranks them worse, beyond doubt."""
        return self.interval[1] < 0

    def __str__(self) -> str:
        low, high = self.interval
        bounds = f"{LEVEL:.0%} interval of the change {low:+.3f} to {high:+.3f}"
        return f"{self.before:.3f} before it and {self.after:.3f} after it ({bounds})"


@dataclass(frozen=True)
class Judgement:
    """The comparison of base and adapted model on the hold-out, by the scores that tuning would get of either.

    Attributes:
        before, after: top1, top5 and pairwise of both, given the learnt programs where they take context.
        zero_shot: the same without context; None where neither takes any.
        context: what context changes for the model that the guard decided on; None where that takes none.
    """

    guard: GuardResult
    before: dict[str, float]
    after: dict[str, float]
    zero_shot: dict[str, dict[str, float]] | None = None
    context: AccuracyChange | None = None


def judge(
    base: ModelFeatures,
    adapted: ModelFeatures,
    held: RankingDataset,
    known: RankingDataset,
    gain: float | None,
    seed: int,
) -> Judgement:
    """Compare two models on the held-out programs, given those learnt from and the cross-validated gain."""
    views = {"before": base, "after": adapted}
    scores = {name: view.scores(held, known) for name, view in views.items()}
    guard = compare(scores["before"], scores["after"], held.latency, held.group, seed=seed, learnt_gain=gain)
    before, after = (_metrics(own, held) for own in scores.values())
    zero_shot = context = None
    if not np.isin(held.group, known.group).any():  # other tasks judge: no program of theirs is known
        return Judgement(guard, before, after)
    if any(isinstance(view.model, ContextModel) for view in views.values()):
        zero_shot = {name: _metrics(view.alone(held), held) for name, view in views.items()}
    name = "after" if guard.decision == "adapted" else "before"
    if isinstance(views[name].model, ContextModel):
        worth = compare(views[name].alone(held), scores[name], held.latency, held.group, seed=seed)
        context = AccuracyChange(worth.base, worth.adapted, worth.interval)
    return Judgement(guard, before, after, zero_shot, context)


def _metrics(scores: np.ndarray, held: RankingDataset) -> dict[str, float]:
    return evaluate_scores(scores, held.latency, held.group, held.task_weights)
