"""Rows and judged latencies of the tuning benchmark to curves and ratios; no TVM, no clock.

A system's curve is the sum over tasks of weight * judged latency of the program that the system held for its task's
best at that moment, the untuned program where that is faster or where it had none. That sum is what compilation with
the system's database would give: a system that misjudges its programs pays for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median
from typing import Any

from scripts.benchmarks.tuning.runs import OURS, STOCK, UNTUNED

Judged = Mapping[tuple[str, str], float]
_INFINITE = float("inf")


@dataclass(frozen=True)
class Point:
    """The curve after one more trial: programs measured, seconds on the clock, network latency in seconds."""

    trials: int
    seconds: float
    latency: float


def curve(row: Mapping[str, Any], judged: Judged) -> list[Point]:
    """The curve of a run, from its untuned start at no trials."""
    tasks = row["tasks"]
    untuned = [judged.get((task["task"], UNTUNED), _INFINITE) for task in tasks]
    held = list(untuned)
    points = [Point(0, 0.0, _total(tasks, held))]
    for trials, (seconds, number, _, key) in enumerate(row["trajectory"], 1):
        if key is not None:
            held[number] = min(untuned[number], judged.get((tasks[number]["task"], key), _INFINITE))
        points.append(Point(trials, seconds, _total(tasks, held)))
    return points


def _total(tasks: Sequence[Mapping[str, Any]], held: Sequence[float]) -> float:
    return sum(task["weight"] * latency for task, latency in zip(tasks, held, strict=True))


def reach(points: Sequence[Point], latency: float) -> Point | None:
    """The first point at least as good as `latency`; None: never."""
    return next((point for point in points if point.latency <= latency), None)


def at_seconds(points: Sequence[Point], seconds: float) -> float:
    """Latency when so many seconds have passed, or at the end of a shorter run."""
    return [point for point in points if point.seconds <= seconds][-1].latency


def versus(row: Mapping[str, Any], stock: Mapping[str, Any], judged: Judged) -> dict[str, Any]:
    """One run beside stock's of the same network and seed.

    Where stock's final latency is never reached, all that the run spent stands for the time and the trials to it:
    the true numbers are larger, so that `time_ratio` and `trials_ratio` are upper bounds, and `reached` is false.

    Returns:
        `time_ratio`, `trials_ratio`: stock's seconds and trials until it had its final latency over this run's until it
        had it too; `wall_ratio`: the same with all the seconds that stock spent. `latency_ratio_equal_trials`: stock's
        latency over this run's after as many trials; `..._at_stock_wall`: when stock's whole wall time has passed.
    """
    mine, theirs = curve(row, judged), curve(stock, judged)
    final = theirs[-1].latency
    goal, own = reach(theirs, final), reach(mine, final)
    assert goal is not None
    spent = own or Point(mine[-1].trials, row["seconds"]["tuning"], final)
    trials = min(mine[-1].trials, theirs[-1].trials)
    wall = stock["seconds"]["tuning"]
    return {
        "network": row["network"],
        "seed": row["seed"],
        "final_ms": 1e3 * mine[-1].latency,
        "stock_final_ms": 1e3 * final,
        "reached": own is not None,
        "seconds_to_stock": spent.seconds,
        "trials_to_stock": spent.trials,
        "stock_seconds": goal.seconds,
        "stock_trials": goal.trials,
        "time_ratio": ratio(goal.seconds, spent.seconds),
        "trials_ratio": ratio(goal.trials, spent.trials),
        "wall_ratio": ratio(wall, spent.seconds),
        "latency_ratio_equal_trials": ratio(theirs[trials].latency, mine[trials].latency),
        "latency_ratio_at_stock_wall": ratio(final, at_seconds(mine, wall)),
    }


def ratio(numerator: float, denominator: float) -> float:
    """A quotient; a start that is good enough already (0 seconds, 0 trials) counts as one second or one trial."""
    return max(numerator, 1e-9) / denominator if denominator > 0 else max(numerator, 1.0)


RATIOS = ("time_ratio", "trials_ratio", "wall_ratio", "latency_ratio_equal_trials", "latency_ratio_at_stock_wall")


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, least and largest of the seeds."""
    return {"median": median(values), "least": min(values), "largest": max(values)}


def by_network(pairs: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """The comparisons of each network."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for pair in pairs:
        found.setdefault(pair["network"], []).append(pair)
    return found


def sum_up(pairs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The ratios: seeds averaged within a network, then networks, both geometrically."""
    networks = by_network(pairs)
    means = {
        name: geometric_mean(geometric_mean(pair[name] for pair in same) for same in networks.values())
        for name in RATIOS
    }
    reached = sum(pair["reached"] for pair in pairs)
    return {**means, "networks": len(networks), "runs": len(pairs), "reached": reached}


def table(pairs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row a network: medians over the seeds, with their spread."""
    shown = ("final_ms", "stock_final_ms", "seconds_to_stock", "trials_to_stock", "stock_seconds", *RATIOS)
    return [
        {"network": network, "seeds": [p["seed"] for p in same], "reached": sum(p["reached"] for p in same)}
        | {name: spread([p[name] for p in same]) for name in shown}
        for network, same in by_network(pairs).items()
    ]


def slower_than_pytorch(timed: Sequence[Mapping[str, Any]]) -> int:
    """Networks whose median latency, compiled from tchub's database, is over PyTorch eager's.

    Args:
        timed: results of `latency.time_network`, with `network`.
    """
    own = [row["latency"] | {"network": row["network"]} for row in timed if OURS in row["latency"]]

    def middle(name: str, rows: Sequence[Mapping[str, Any]]) -> float:
        return median(row[name]["median"] for row in rows)

    return sum(middle(OURS, same) > middle("pytorch", same) for same in by_network(own).values())


def compare_rows(rows: Sequence[Mapping[str, Any]], judged: Judged) -> list[dict[str, Any]]:
    """Every run of tchub beside stock's of its network, seed and budget."""
    stock = {_setting(row): row for row in rows if row["system"] == STOCK}
    own = (row for row in rows if row["system"] == OURS and _setting(row) in stock)
    return [versus(row, stock[_setting(row)], judged) for row in own]


def _setting(row: Mapping[str, Any]) -> tuple[str, int, int]:
    return row["network"], row["seed"], row["trials_per_task"]
