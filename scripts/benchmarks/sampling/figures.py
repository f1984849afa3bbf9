"""From journaled runs of samplers to tables and the summary of `docs/benchmarks/sampling.json`.

Whatever is subtracted or divided is a mean over the seeds that both sides have.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from scripts.benchmarks.common import monotone, spread

SCORES = ("pairwise", "mean_top1", "mean_top5")
# What is quoted, and how it is named.
QUOTED = {"top1": "mean_top1", "pairwise": "pairwise"}
DIFFERENCES = (("rdu_minus_random", "rdu", "random"), ("rdu_plus_minus_rdu", "rdu+", "rdu"))
AT = 0.1
ALL = "all"
Row = Mapping[str, Any]
Curves = dict[str, dict[float, dict[int, float]]]


def table(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """One row for each corpus, block, sampler and share: mean and standard deviation over the seeds."""
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["corpus"], row["block"], row["sampler"], row["share"]].append(row)
    return [
        dict(zip(("corpus", "block", "sampler", "share"), key, strict=True))
        | {"seeds": sorted(row["seed"] for row in same), "programs": same[0]["programs"]}
        | {name: spread([row["scores"][name] for row in same], 4) for name in SCORES}
        | {"measuring_seconds": round(statistics.mean(row["measuring_seconds"] for row in same), 2)}
        for key, same in sorted(groups.items())
    ]


def means(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One row for each start, share and sampler: means over the corpora and seeds that all samplers have run there."""
    return common_means([row for row in rows if row["sampler"] != ALL], ("block", "share"))


def common_means(rows: Iterable[Row], keys: Sequence[str]) -> list[dict[str, Any]]:
    """One row for each value of some keys and sampler: means over the runs that all samplers have there."""
    groups: dict[tuple[Any, ...], dict[str, dict[tuple[str, int], Row]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        groups[tuple(row[key] for key in keys)][row["sampler"]][row["corpus"], row["seed"]] = row
    table = []
    for values, by_sampler in sorted(groups.items()):
        common = set.intersection(*map(set, by_sampler.values()))
        for sampler, own in sorted(by_sampler.items()) if common else ():
            runs = [own[run] for run in common]
            line = dict(zip(keys, values, strict=True)) | {"sampler": sampler, "runs": len(runs)}
            line["measuring_seconds"] = round(statistics.mean(run["measuring_seconds"] for run in runs), 1)
            scores = {name: round(statistics.mean(run["scores"][name] for run in runs), 4) for name in SCORES}
            table.append(line | scores)
    return table


def cells(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Every corpus and block."""
    return sorted({(row["corpus"], row["block"]) for row in rows})


def curves(rows: Iterable[Row], cell: tuple[str, str], figure: str) -> Curves:
    """A score, or another figure, of every seed by sampler and share, of one corpus and block."""
    own: Curves = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        if (row["corpus"], row["block"]) == cell:
            value = row["scores"][figure] if figure in SCORES else row[figure]
            own[row["sampler"]][row["share"]][row["seed"]] = value
    return own


def by_cell(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Each difference at a tenth for each corpus and block, over the seeds that both samplers have."""
    table = []
    for cell in cells(rows):
        line: dict[str, Any] = {}
        for suffix, score in QUOTED.items():
            own = curves(rows, cell, score)
            for name, better, worse in DIFFERENCES:
                one, other = own[better][AT], own[worse][AT]
                if seeds := sorted(one.keys() & other.keys()):
                    line[f"{name}_{suffix}"] = spread([one[seed] - other[seed] for seed in seeds], 4)
        if line:
            table.append({"corpus": cell[0], "block": cell[1]} | line)
    return table


def budgets(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """For each corpus, block and score: what rdu+ needs for RDU's score at a tenth, over that tenth.

    RDU itself is read off in the same way for control: what its ratio is off 1 is the way's error, not a gain.

    Returns:
        Rows with `rdu+` and `rdu`, the ratios of programs; `... seconds`, those of the seconds to measure them; the
        two `... is`: see `first_share`; `seeds`: of both curves.
    """
    asked = [(cell, score) for cell in cells(rows) for score in QUOTED.values()]
    return [row for cell, score in asked if (row := _budget(rows, cell, score))]


def _budget(rows: Sequence[Row], cell: tuple[str, str], score: str) -> dict[str, Any] | None:
    own, costs = curves(rows, cell, score), curves(rows, cell, "measuring_seconds")
    points = [*own["rdu"].values(), *own["rdu+"].values()]
    if AT not in own["rdu"] or not own["rdu+"] or len(own["rdu+"]) + len(own[ALL]) < 2:
        return None
    seeds = set.intersection(*(set(point) for point in points))
    if not seeds:
        return None
    wanted = statistics.mean(own["rdu"][AT][seed] for seed in seeds)
    line: dict[str, Any] = {"corpus": cell[0], "block": cell[1], "score": score, "seeds": len(seeds)}
    for sampler in ("rdu+", "rdu"):
        share, bound = first_share(_mean_curve(own[sampler], seeds) | _mean_curve(own[ALL], seeds), wanted)
        seconds = _at(share, _mean_curve(costs[sampler], seeds) | _mean_curve(costs[ALL], seeds))
        spent = seconds / _at(AT, _mean_curve(costs["rdu"], seeds))
        line |= {sampler: round(share / AT, 4), f"{sampler} is": bound}
        line[f"{sampler} seconds"] = round(spent, 4)
    return line


def _at(share: float, curve: Mapping[float, float]) -> float:
    """A figure at a share between those that were run: between two of them a power of the share."""
    shares = sorted(curve)
    return float(np.exp(np.interp(np.log(share), np.log(shares), np.log([curve[at] for at in shares]))))


def _mean_curve(points: Mapping[float, Mapping[int, float]], seeds: set[int]) -> dict[float, float]:
    """Means over these seeds; everything at once has fewer of them, and is taken by those that it has."""
    known = {share: [value for seed, value in own.items() if seed in seeds] for share, own in points.items()}
    return {share: statistics.mean(values) for share, values in known.items() if values}


def first_share(curve: Mapping[float, float], wanted: float) -> tuple[float, str]:
    """The smallest share at which a curve of score by share has a score, once the curve is made monotone.

    Beside it "at most" or "at least" where it is a bound of what was run, else nothing.
    Between two shares the score is taken to grow with the logarithm of the budget.
    """
    points = monotone(sorted(curve.items()))
    if points[0][1] >= wanted:
        return points[0][0], "at most"
    for (low, lower), (high, higher) in pairwise(points):
        if higher >= wanted:
            part = (wanted - lower) / (higher - lower)
            return float(np.exp(np.log(low) + part * (np.log(high) - np.log(low)))), ""
    return points[-1][0], "at least"


def summary(rows: Sequence[Row]) -> dict[str, float | None]:
    """The figures that are quoted, means over corpora and blocks; None where the runs for one are missing.

    A ratio that is only known to be at least or at most something counts as that; `..._never` is how many cells did
    not reach the score with the largest share that was run, `..._at_once` how many had it with the smallest.
    """
    compared, ratios = by_cell(rows), budgets(rows)
    quoted: dict[str, float | None] = {}
    for suffix, score in QUOTED.items():
        for name, _, _ in DIFFERENCES:
            key = f"{name}_{suffix}"
            quoted[key] = _mean([row[key]["mean"] for row in compared if key in row])
        own = [row for row in ratios if row["score"] == score]
        end = "" if score == "mean_top1" else f"_{suffix}"
        for sampler, name in (("rdu+", "rdu_plus"), ("rdu", "rdu_control")):
            values, key = [row[sampler] for row in own], f"{name}_budget_ratio{end}"
            quoted[key] = _mean(values)
            quoted[f"{key}_median"] = round(statistics.median(values), 4) if values else None
            quoted[f"{name}_seconds_ratio{end}"] = _mean([row[f"{sampler} seconds"] for row in own])
            quoted[f"{key}_never"] = sum(row[f"{sampler} is"] == "at least" for row in own)
            quoted[f"{key}_at_once"] = sum(row[f"{sampler} is"] == "at most" for row in own)
        quoted[f"budget_ratio_cells{end}"] = len(own)
    return quoted


def _mean(values: Sequence[float]) -> float | None:
    return round(statistics.mean(values), 4) if values else None
