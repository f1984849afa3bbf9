"""RDU: representativeness, diversity, uncertainty (paper TCL, section 4), and its greedy without quadratic cost.

The greedy is exact. Scores are numbers on a line. The labeled ones cut it into gaps; within a gap t_s = f d_s + u_s is
convex up to the middle (where f d_s = f (f - a)) and concave after it (f (b - f)), so the best program of a gap and a
type is the first or last one of the left half, or one of the two around the parabola's top in the right half. A pick
splits one gap. It also moves mean and spread, hence u_s everywhere: by how much at most is known in closed form,
so values from before are bounds, and a gap is looked at again only when its bound comes to the top of the heap.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, NamedTuple

import numpy as np

from .pool import Selection, op_budgets
from .sampler import RandomSampler, Sampler, SamplingRequest, finite_scores, normalise


class RDUSampler(Sampler):
    """Representativeness, diversity, uncertainty: algorithm 1 and equations 1 to 3 of paper TCL.

    Representative: operator types share the budget as they share the tasks of the pool, counted over all
    rounds, so that a type too rare for one round gets its programs in a later one. Within its type's budget,
    a program is picked for t_s = f(x) d_s(x) + u_s(x); each pick joins the labeled set before the next
    (line 30). The first call, without a model or labels, is Rand_Select of line 16.

    The model's scores are scaled to [0, 1] over the pool. Ties are broken at random.
    """

    name: ClassVar[str] = "rdu"

    def pick(self, request: SamplingRequest) -> Selection:
        """O(n log n), and about O(log n) a pick."""
        rest, predictions = request.shuffled(), request.informed()
        if predictions is None:
            return RandomSampler().pick(request)
        f = normalise(finite_scores(predictions))
        left = op_budgets(request.pool, request.labeled, min(request.k, len(rest)))
        op = np.array([list(left).index(o) if o in left else -1 for o in request.pool.ops])[request.pool.task[rest]]
        greedy = _Greedy(f[rest], op, np.array(list(left.values())), f[request.labeled])
        index, diversity, uncertainty, total = greedy.run()
        return request.picked(rest[index.astype(int)], diversity=diversity, uncertainty=uncertainty, total=total)


@dataclass(slots=True)
class Moments:
    """Moments of the labeled scores, updated pick by pick (Welford); `spread` is their summed squared deviations."""

    count: int
    mean: float
    spread: float

    @property
    def pull(self) -> float:
        """c in u_s = spread / (count + 1) + c (f - mean)^2."""
        return self.count / (self.count + 1) ** 2

    def variance_with(self, f: float) -> float:
        """u_s, equations 2 and 3."""
        return self.spread / (self.count + 1) + self.pull * (f - self.mean) ** 2

    def add(self, f: float) -> float:
        """Add a score; return by how much c (x - mean)^2 has grown at most, x in [0, 1]."""
        pull, mean = self.pull, self.mean
        self.count += 1
        self.mean += (f - mean) / self.count
        self.spread += (f - mean) * (f - self.mean)
        bend = self.pull - pull
        slope = self.pull * self.mean - pull * mean
        top = min(1.0, max(0.0, slope / bend)) if bend < 0 else 0.0
        return max(self.pull * (x - self.mean) ** 2 - pull * (x - mean) ** 2 for x in (0.0, top, 1.0))


@dataclass(slots=True)
class _Gap:
    """Between the labeled scores `low` and `high`; `ranges` are (type, first, end) of the sorted programs inside."""

    low: float
    high: float
    ranges: list[tuple[int, int, int]]


class _Best(NamedTuple):
    """The best program of a gap: its total less what all share, type, and position among the type's."""

    value: float
    op: int
    at: int


class _Greedy:
    """Lines 23 to 34 of algorithm 1: pick the best t_s whose type has budget left, label it, repeat.

    Args:
        f: (n,) scores in [0, 1] of the open programs; of equal ones the order given decides.
        op: (n,) type of each; budgets: of each type, at most as many as it has programs.
        known: (m,) scores of the labeled programs, m >= 1.
    """

    def __init__(self, f: np.ndarray, op: np.ndarray, budgets: np.ndarray, known: np.ndarray) -> None:
        self.left = [int(b) for b in budgets]
        order = np.lexsort((f, op))
        ends = np.searchsorted(op[order], np.arange(len(self.left) + 1))
        self.indices = [order[a:b] for a, b in pairwise(ends)]
        self.values: list[list[float]] = [f[members].tolist() for members in self.indices]
        mean = float(known.mean())
        self.moments = Moments(len(known), mean, float(((known - mean) ** 2).sum()))
        self.drift = 0.0
        # (minus the bound, less the drift so far; number; step of the value; gap; its best)
        self.heap: list[tuple[float, int, int, _Gap, _Best]] = []
        self.pushed = 0
        self._open(np.unique(known))

    def _open(self, edges: np.ndarray) -> None:
        """The gaps of the start."""
        inside: dict[int, list[tuple[int, int, int]]] = {}
        for number, values in enumerate(self.values):
            cuts = np.concatenate([[0], np.searchsorted(values, edges), [len(values)]])
            for gap in np.flatnonzero(np.diff(cuts)).tolist():
                inside.setdefault(gap, []).append((number, int(cuts[gap]), int(cuts[gap + 1])))
        bounds = [-math.inf, *edges.tolist(), math.inf]
        for gap, ranges in inside.items():
            self._push(_Gap(bounds[gap], bounds[gap + 1], ranges), 0)

    def run(self) -> np.ndarray:
        """Return index, d_s, u_s and t_s of each pick in their order, (4, k)."""
        rows: list[tuple[int, float, float, float]] = []
        for step in range(sum(self.left)):
            gap, best = self._pop(step)
            rows.append(self._row(gap, best))
            self.left[best.op] -= 1
            self.drift += self.moments.add(self.values[best.op][best.at])
            for half in self._split(gap, best):
                self._push(half, step + 1)
        return np.array(rows).reshape(-1, 4).T

    def _row(self, gap: _Gap, best: _Best) -> tuple[int, float, float, float]:
        f = self.values[best.op][best.at]
        distance, uncertainty = min(f - gap.low, gap.high - f), self.moments.variance_with(f)
        return int(self.indices[best.op][best.at]), distance, uncertainty, f * distance + uncertainty

    def _push(self, gap: _Gap, step: int) -> None:
        best = self._best(gap)
        if best is not None:
            self.pushed += 1
            heapq.heappush(self.heap, (self.drift - best.value, self.pushed, step, gap, best))

    def _pop(self, step: int) -> tuple[_Gap, _Best]:
        """The gap whose value of now is at least every other's bound."""
        while True:
            _, _, valued, gap, best = heapq.heappop(self.heap)
            if valued == step and self.left[best.op]:
                return gap, best
            self._push(gap, step)

    def _best(self, gap: _Gap) -> _Best | None:
        """The best open program of a gap; None where all its types have spent their budgets."""
        pull, mean, low, high = self.moments.pull, self.moments.mean, gap.low, gap.high
        middle = high if math.isinf(high) else (low + high) / 2
        top = (high - 2 * pull * mean) / (2 * (1 - pull))
        top_pick: _Best | None = None
        for op, first, end in gap.ranges:
            if not self.left[op]:
                continue
            values = self.values[op]
            half = bisect_right(values, middle, first, end)
            peak = bisect_left(values, top, half, end)
            for at in {first, half - 1, peak - 1, peak}:
                if first <= at < end:
                    f = values[at]
                    value = f * min(f - low, high - f) + pull * (f - mean) ** 2
                    if top_pick is None or value > top_pick.value:
                        top_pick = _Best(value, op, at)
        return top_pick

    def _split(self, gap: _Gap, best: _Best) -> tuple[_Gap, _Gap]:
        """Return the gaps on both sides of the best program."""
        edge = self.values[best.op][best.at]
        lower: list[tuple[int, int, int]] = []
        upper: list[tuple[int, int, int]] = []
        for op, first, end in gap.ranges:
            own = op == best.op
            cut = best.at if own else bisect_left(self.values[op], edge, first, end)
            if cut > first:
                lower.append((op, first, cut))
            if cut + own < end:
                upper.append((op, cut + own, end))
        return _Gap(gap.low, edge, lower), _Gap(edge, gap.high, upper)
