"""From journaled runs of samplers to tables and the summary of `docs/benchmarks/sampling.json`."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

SCORES = ("pairwise", "mean_top1", "mean_top5")
AT = 0.1
Row = dict[str, Any]
Cell = tuple[str, str]


def table(rows: Iterable[Row]) -> list[Row]:
    """One row for each corpus, block, sampler and share: mean and standard deviation over the seeds."""
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["corpus"], row["block"], row["sampler"], row["share"]].append(row)
    return [_summed_up(key, same) for key, same in sorted(groups.items())]


def _summed_up(key: tuple[Any, ...], rows: Sequence[Row]) -> Row:
    out: Row = dict(zip(("corpus", "block", "sampler", "share"), key, strict=True))
    out |= {"seeds": sorted(row["seed"] for row in rows), "programs": rows[0]["programs"]}
    for name in SCORES:
        values = [row["scores"][name] for row in rows]
        out[name] = round(statistics.mean(values), 4)
        out[f"{name}_sd"] = round(statistics.stdev(values), 4) if len(values) > 1 else None
    for name in ("measuring_seconds", "select_seconds", "learn_seconds"):
        out[name] = round(statistics.mean(row[name] for row in rows), 2)
    return out


def summary(means: Sequence[Row]) -> dict[str, float | None]:
    """The figures that are quoted, means over corpora and blocks; None where the runs for one are missing."""
    found: dict[str, float | None] = {}
    for suffix, score in (("top1", "mean_top1"), ("pairwise", "pairwise")):
        found[f"rdu_minus_random_{suffix}"] = _mean(_differences(means, score, "rdu", "random").values())
        found[f"rdu_plus_minus_rdu_{suffix}"] = _mean(_differences(means, score, "rdu+", "rdu").values())
    found["rdu_plus_budget_ratio"] = _mean(budget_ratios(means, "mean_top1").values())
    found["rdu_plus_budget_ratio_pairwise"] = _mean(budget_ratios(means, "pairwise").values())
    return found


def by_cell(means: Sequence[Row]) -> list[Row]:
    """The same figures for each corpus and block."""
    cells = sorted({(row["corpus"], row["block"]) for row in means})
    return [
        {"corpus": c, "block": b} | summary([row for row in means if (row["corpus"], row["block"]) == (c, b)])
        for c, b in cells
    ]


def budget_ratios(means: Sequence[Row], score: str) -> dict[Cell, float]:
    """Budget at which rdu+ first has RDU's score at a tenth, over that tenth, for each corpus and block.

    Between two shares the score is taken to grow with the logarithm of the budget. A first share that is good
    enough already, or not even everything being so, gives that end of the curve.
    """
    curves, ratios = _curves(means, score), {}
    for cell, wanted in ((key[:2], points.get(AT)) for key, points in curves.items() if key[2] == "rdu"):
        ours = curves.get((*cell, "rdu+"), {}) | curves.get((*cell, "all"), {})
        if wanted is not None and len(ours) > 1:
            ratios[cell] = first_share(ours, wanted) / AT
    return ratios


def first_share(curve: dict[float, float], wanted: float) -> float:
    """The smallest share at which a curve of score by share reaches a score; see `budget_ratios`."""
    shares = sorted(curve)
    if curve[shares[0]] >= wanted:
        return shares[0]
    for low, high in pairwise(shares):
        if curve[high] >= wanted:
            part = (wanted - curve[low]) / (curve[high] - curve[low])
            return float(np.exp(np.log(low) + part * (np.log(high) - np.log(low))))
    return shares[-1]


def _curves(means: Sequence[Row], score: str) -> dict[tuple[str, str, str], dict[float, float]]:
    curves: dict[tuple[str, str, str], dict[float, float]] = defaultdict(dict)
    for row in means:
        curves[row["corpus"], row["block"], row["sampler"]][row["share"]] = row[score]
    return curves


def _differences(means: Sequence[Row], score: str, better: str, worse: str) -> dict[Cell, float]:
    at = {(row["corpus"], row["block"], row["sampler"]): row[score] for row in means if row["share"] == AT}
    return {
        (corpus, block): at[corpus, block, better] - value
        for (corpus, block, sampler), value in at.items()
        if sampler == worse and (corpus, block, better) in at
    }


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return round(statistics.mean(known), 4) if known else None
