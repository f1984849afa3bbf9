"""RDU: representativeness, diversity, uncertainty (paper TCL, section 4), and `rdu+`, tchub's own form of it."""

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from .pool import Selection, op_budgets, task_budgets
from .predictions import LastLayerPosterior
from .sampler import RandomSampler, Sampler, SamplingRequest, finite_scores

# Programs among which the greedy looks at all pairs.
CHUNK = 4096


class RDUSampler(Sampler):
    """Representativeness, diversity, uncertainty: algorithm 1 and equations 1 to 3 of paper TCL.

    Representative: operator types share the budget as they share the tasks of the pool, counted over all
    rounds, so that a type too rare for one round gets its programs in a later one. Within its type's budget,
    a program is picked for t_s = f(x) d_s(x) + u_s(x); each pick joins the labeled set before the next
    (line 30). The first call, without a model or labels, is Rand_Select of line 16.

    The model's scores are scaled to [0, 1] over the pool, equal ones to 0. Ties are broken at random. The greedy looks
    at `chunks` of a large pool one after another.
    """

    name: ClassVar[str] = "rdu"

    def pick(self, request: SamplingRequest) -> Selection:
        """O(n log m + c k) for chunks of c and m labeled programs."""
        rest, predictions = request.shuffled(), request.predictions
        if predictions is None or not len(request.labeled):
            return RandomSampler().pick(request)
        scores = finite_scores(predictions)
        span = np.ptp(scores) if len(scores) else 0.0
        f = (scores - scores.min()) / span if span > 0 else np.zeros_like(scores)
        left = op_budgets(request.pool, request.labeled, min(request.k, len(rest)))
        number = {op: i for i, op in enumerate(left)}
        op = np.array([number.get(name, -1) for name in request.pool.ops])[request.pool.task[rest]]
        known, rows = f[request.labeled], []
        for part, budgets in chunks(op, np.array(list(left.values()))):
            rows.append(_greedy(f[rest[part]], op[part], budgets, known))
            rows[-1][0] += part.start
            known = np.concatenate([known, f[rest[rows[-1][0].astype(int)]]])
        index, diversity, uncertainty, total = np.concatenate(rows, axis=1)
        return request.picked(rest[index.astype(int)], diversity=diversity, uncertainty=uncertainty, total=total)


def chunks(kind: np.ndarray, budgets: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Cut programs, which are in random order, into parts of at most `CHUNK`, each with its share of the budgets.

    Args:
        kind: (n,) kind of each program; budgets: of each kind (K,), at most as many as it has programs.
    """
    cuts = np.linspace(0, len(kind), -(-len(kind) // CHUNK) + 1).astype(int)
    before = np.stack([np.bincount(kind[:cut], minlength=len(budgets)) for cut in cuts])
    shares = np.diff(before * budgets // np.maximum(before[-1], 1), axis=0)  # of no kind more than the part has
    for start, end, share in zip(cuts[:-1], cuts[1:], shares, strict=True):
        yield slice(start, end), share


def _greedy(f: np.ndarray, op: np.ndarray, budgets: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Run lines 23 to 34 of algorithm 1: (4, k) of index, d_s, u_s and t_s of each pick, in their order.

    Args:
        f: (n,) scores in [0, 1] of the open programs; op: (n,) type of each; budgets: of each type.
        known: (m,) scores of the labeled programs, m >= 1.
    """
    rows, left = np.empty((4, budgets.sum())), budgets.copy()
    closed = np.where(left[op] > 0, 0.0, -np.inf)
    edges = np.concatenate([[-np.inf], np.sort(known), [np.inf]])
    above = np.searchsorted(edges, f)
    distance = np.minimum(f - edges[above - 1], edges[above] - f)
    count, mean, spread = len(known), known.mean(), np.square(known - known.mean()).sum()
    for number in range(rows.shape[1]):
        apart = count / (count + 1) ** 2 * (f - mean) ** 2  # u_s is this and what all share
        best = int((f * distance + apart + closed).argmax())
        uncertainty = spread / (count + 1) + apart[best]
        rows[:, number] = best, distance[best], uncertainty, f[best] * distance[best] + uncertainty
        closed[best] = -np.inf
        left[op[best]] -= 1
        if not left[op[best]]:
            closed[op == op[best]] = -np.inf
        np.minimum(distance, np.abs(f - f[best]), out=distance)
        count, change = count + 1, f[best] - mean  # Welford
        mean += change / count
        spread += change * (f[best] - mean)
    return rows


# Labels that a task gets before another one is begun, where the tasks stand for others. n labels of one task are
# n (n - 1) / 2 pairs in order, and as many tasks with one label each are none. Tasks that are to be ranked themselves
# (`Pool.to_rank`) are level, since a label of the very task teaches most.
BLOCK = 16


class RDUPlusSampler(Sampler):
    """RDU's three criteria with other means.

    Representative: types share the budget as RDU has it, and within a type all tasks have the same number, over
    all rounds, in blocks of 16 (`BLOCK`): a budget of a few programs a task goes to some tasks, and the
    others follow as there is more.

    Diverse: scores compare within a task alone, so each task's open programs are put in the order of their
    scores and cut into as many even strata as there are picks, one pick each. And each pick is taken for measured
    before the next, a rank-one update of the posterior that needs no label: of two programs with like embeddings the
    second then adds little (greedy, as one finds the mode of a determinantal point process).

    Uncertain: not how far a score lies from the others, but the variance s^2 that the weights of the last layer,
    given all labels, leave to it (`predictions`). Under noise n a label tells log(1 + s^2 / n) / 2 nats of these
    weights; it is divided by the seconds that it costs, `PoolPredictions.seconds`, and the most per second is picked in
    each stratum. Where all programs compete, the model learns from oddities: that was no better than chance.

    Without a model the choice within a task is random. O(n log n + n p^2 + k p^2) for p directions. Block and cost
    were chosen on validation tasks.
    """

    name: ClassVar[str] = "rdu+"

    def pick(self, request: SamplingRequest) -> Selection:
        rest, pool, predictions = request.shuffled(), request.pool, request.predictions
        block = 1 if pool.to_rank else BLOCK
        budgets = task_budgets(pool, request.labeled, request.k, request.rng, block)
        members = pool.by_task(rest)
        # What one task's picks teach counts against the next task's: none is always the last.
        tasks = request.rng.permutation(np.flatnonzero(budgets)).tolist()
        if predictions is None:
            return request.picked(np.concatenate([members[task][: budgets[task]] for task in tasks]))
        scores = finite_scores(predictions)
        belief = _Belief(predictions.last_layer, 1 / predictions.seconds())
        rows = [
            belief.pick(stratum)
            for task in tasks
            for stratum in np.array_split(
                members[task][np.argsort(-scores[members[task]], kind="stable")], budgets[task]
            )
        ]
        index, diversity, uncertainty, total = np.array(rows).T
        return request.picked(index.astype(np.int64), diversity=diversity, uncertainty=uncertainty, total=total)


class _Belief:
    """The posterior of the last layer's weights, as picks are taken for measured.

    Args:
        layer: the posterior given the labels.
        worth: (N,) what a nat is worth of each program.
    """

    def __init__(self, layer: LastLayerPosterior, worth: np.ndarray) -> None:
        self._layer, self._worth, self._covariance = layer, worth, layer.covariance.copy()

    def pick(self, members: np.ndarray) -> tuple[float, float, float, float]:
        """Pick the program that teaches most for its worth: index, diversity, uncertainty and total.

        Diversity is the part of the variance given the labels that no earlier pick of the batch has explained.
        """
        inputs = self._layer.inputs[members].astype(np.float64)
        variance = np.maximum(np.einsum("np,np->n", inputs @ self._covariance, inputs), 0.0)
        gain = 0.5 * np.log1p(variance / self._layer.noise) * self._worth[members]
        best = int(gain.argmax())
        taken, doubt = inputs[best], float(variance[best])
        before = float(taken @ self._layer.covariance @ taken)
        direction = self._covariance @ taken / np.sqrt(self._layer.noise + doubt)
        self._covariance -= np.outer(direction, direction)
        return float(members[best]), doubt / before if before > 0 else 1.0, np.sqrt(doubt), float(gain[best])
