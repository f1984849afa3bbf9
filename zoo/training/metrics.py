"""How good a ranking is: top-k (TLP 6.1, TCL equation 12), its mean over tasks, and pairwise accuracy.

Arguments everywhere: scores (N,) higher is better, latency (N,) in seconds, group (N,) task index from 0,
weights (T,) occurrences of the task. Where several programs of a task have the same score, every order of
them is equally likely and the *expected* result is returned, so that a model that scores all programs alike
gets exactly what a random pick gets, and no metric depends on the order of the corpus.
"""

from collections.abc import Iterator

import numpy as np

# Pairs nearer than this ratio are within the noise of measuring and have no order.
PAIR_RATIO = 1.05
# Rows that are compared with all others at a time.
_PAIR_ROWS = 512


def top_k(scores: np.ndarray, latency: np.ndarray, group: np.ndarray, weights: np.ndarray, k: int) -> float:
    """Return the weighted top-k score of TLP 6.1 and TCL equation 12.

    sum over (network, task) of min latency x weight / sum of (best latency among the k best-scored) x weight.
    A task of several networks counts once in each: its weight is the sum over the networks considered.
    With tied scores the denominator is an expectation. Tasks without programs are left out. NaN without any.
    """
    best = total = 0.0
    for task, rank, seconds in _tasks(scores, latency, group):
        values, chance = _best_of_top(rank, seconds, k)
        best += float(seconds.min()) * float(weights[task])
        total += float(values @ chance) * float(weights[task])
    return best / total if total else float("nan")


def mean_top_k(scores: np.ndarray, latency: np.ndarray, group: np.ndarray, k: int) -> float:
    """Return the mean over tasks of min latency / best latency among the k best-scored; NaN without tasks."""
    ratios = []
    for _, rank, seconds in _tasks(scores, latency, group):
        values, chance = _best_of_top(rank, seconds, k)
        ratios.append(float((seconds.min() / values) @ chance))
    return float(np.mean(ratios)) if ratios else float("nan")


def pairwise_accuracy(scores: np.ndarray, latency: np.ndarray, group: np.ndarray) -> float:
    """Return the mean over tasks of the share of pairs that are ordered rightly.

    Only pairs whose latencies differ by more than 5% count, and tasks that have such a pair. A tie of the
    scores is half right. NaN without any pair.
    """
    shares = [pair_share(rank, seconds) for _, rank, seconds in _tasks(scores, latency, group)]
    known = [share for share in shares if share is not None]
    return float(np.mean(known)) if known else float("nan")


def evaluate_scores(
    scores: np.ndarray, latency: np.ndarray, group: np.ndarray, weights: np.ndarray
) -> dict[str, float]:
    """Return the numbers of a card: top1, top5, mean_top1, mean_top5, pairwise."""
    return {
        "top1": top_k(scores, latency, group, weights, 1),
        "top5": top_k(scores, latency, group, weights, 5),
        "mean_top1": mean_top_k(scores, latency, group, 1),
        "mean_top5": mean_top_k(scores, latency, group, 5),
        "pairwise": pairwise_accuracy(scores, latency, group),
    }


def r_squared(predicted: np.ndarray, actual: np.ndarray, group: np.ndarray | None = None) -> float:
    """Return the coefficient of determination: 1 - squared errors / squared distances from the mean.

    Args:
        predicted, actual: (N,).
        group: (N,) task of each; then the mean of its task is taken off every value of either, so that the level of a
            task counts nothing, be it known or missed. None: all values have one mean.

    Returns:
        Below 0 where the mean is nearer; NaN where all values of a task are equal, or there are none.
    """
    missed, spread = actual - predicted, _centred(actual, np.zeros(len(actual), np.int64) if group is None else group)
    error = np.square(missed if group is None else _centred(missed, group)).sum()
    total = np.square(spread).sum()
    return float(1 - error / total) if total else float("nan")


def _centred(values: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Return values (N,) without the mean of their task."""
    return values - (np.bincount(group, values) / np.maximum(np.bincount(group), 1))[group]


def task_scores(scores: np.ndarray, latency: np.ndarray, group: np.ndarray) -> dict[int, dict[str, float]]:
    """Return each task's own top1 (an unweighted ratio) and, where two of its programs have an order, pairwise."""
    scored: dict[int, dict[str, float]] = {}
    for task, rank, seconds in _tasks(scores, latency, group):
        values, chance = _best_of_top(rank, seconds, 1)
        share = pair_share(rank, seconds)
        scored[task] = {"top1": float((seconds.min() / values) @ chance)}
        scored[task] |= {} if share is None else {"pairwise": share}
    return scored


def evaluate_random(latency: np.ndarray, group: np.ndarray, weights: np.ndarray) -> dict[str, float]:
    """Return the scores of a random order, in expectation and in closed form (order statistics, no simulation).

    For the mean over tasks it is the expected ratio; for the weighted score the ratio of expected sums.
    """
    return evaluate_scores(np.zeros_like(latency), latency, group, weights)


def _tasks(scores: np.ndarray, latency: np.ndarray, group: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield number, scores and latencies of each task that has programs. A NaN score ranks last."""
    scores = np.nan_to_num(np.asarray(scores, dtype=np.float64), nan=-np.inf, posinf=np.inf, neginf=-np.inf)
    if not len(scores):
        return
    order = np.argsort(group, kind="stable")
    tasks, starts = np.unique(np.asarray(group)[order], return_index=True)
    for task, index in zip(tasks, np.split(order, starts[1:]), strict=True):
        yield int(task), scores[index], np.asarray(latency, dtype=np.float64)[index]


def _best_of_top(scores: np.ndarray, latency: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the distribution of the best latency among the k best-scored: values (V,) in seconds, chances (V,).

    One value unless the k-th place is shared by equal scores.
    """
    k = min(k, len(scores))
    threshold = np.partition(scores, len(scores) - k)[len(scores) - k]
    sure, tied = latency[scores > threshold], latency[scores == threshold]
    if len(sure):
        tied = np.minimum(tied, sure.min())
    return np.sort(tied), minimum_chances(len(tied), k - len(sure))


def minimum_chances(n: int, k: int) -> np.ndarray:
    """Return the chances (n,) that the i-th smallest of n is the smallest of k drawn: C(n-1-i, k-1) / C(n, k)."""
    chances = np.zeros(n)
    left = 1.0
    for i in range(n - k + 1):
        # Given that none smaller was drawn, k of the n - i remaining are drawn.
        chances[i] = left * k / (n - i)
        left -= chances[i]
    return chances


def tally_pairs(scores: np.ndarray, latency: np.ndarray, asked: np.ndarray | None = None) -> tuple[float, int]:
    """Count the pairs of one task in the right order, a tie being half right, and all pairs that have an order.

    Args:
        scores, latency: (n,).
        asked: (n,) bool, programs of which each pair has one at least; None: all.
    """
    right, pairs = 0.0, 0
    for rows, faster in _faster(latency, asked):
        ahead = np.where(
            scores[rows, None] == scores[None, :], 0.5, (scores[rows, None] > scores[None, :]).astype(float)
        )
        right += float(ahead[faster].sum())
        pairs += int(faster.sum())
    return right, pairs


def pair_share(scores: np.ndarray, latency: np.ndarray, asked: np.ndarray | None = None) -> float | None:
    """Return the share of a task's pairs in the right order; None without any. Arguments as of `tally_pairs`."""
    right, pairs = tally_pairs(scores, latency, asked)
    return right / pairs if pairs else None


def count_pairs(latency: np.ndarray, asked: np.ndarray | None = None) -> int:
    """Count the pairs of one task that have an order; arguments as of `tally_pairs`."""
    return sum(int(faster.sum()) for _, faster in _faster(latency, asked))


def _faster(latency: np.ndarray, asked: np.ndarray | None) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield (rows, n) bool for some rows at a time: row is faster than column beyond the noise, and the pair counts."""
    for start in range(0, len(latency), _PAIR_ROWS):
        rows = slice(start, start + _PAIR_ROWS)
        faster = latency[rows, None] * PAIR_RATIO < latency[None, :]
        yield rows, faster if asked is None else faster & (asked[rows, None] | asked[None, :])
