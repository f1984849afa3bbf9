"""Systems of search side by side, from curves: the latency after each measurement, and before any at first.

A system is worth what it saves: the measurements after which it has the latency that the search without schedules ends
with.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from statistics import geometric_mean, mean, stdev
from typing import Any

# The search without schedules of similar tasks, and with them.
TODAY, DATABASE = "today", "today + database"
# Places of a curve that the document keeps, in programs a task.
PLACES = (1, 2, 3, 4, 8, 16, 32)


def figures(rows: Iterable[Mapping[str, Any]], systems: Iterable[str]) -> list[dict[str, Any]]:
    """Return each system's row: means over the seeds of geometric means over the networks, with 95% intervals.

    `measurements_ratio`: today's measurements until its final latency over the system's until it has that too; a system
    that never has it counts with all that it measured. `reached`: the share of runs that have it. `latency_ratio`:
    today's final latency over the system's. `after`: the latency after so many programs a task, relative to today's
    final one. `unmeasured`: before any, over that of the fastest programs. `searching`, `measuring`: seconds.
    """
    curves = {(row["network"], row["seed"], row["system"]): row for row in rows}
    table = []
    for system in systems:
        seeds: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        for (network, seed, name), row in curves.items():
            today = curves.get((network, seed, TODAY))
            if name != system or today is None:
                continue
            final, curve = today["curve"][-1], row["curve"]
            own, theirs = first_at(curve, final, len(today["curve"]) - 1), first_at(today["curve"], final)
            seeds["reached"][seed].append(float(min(curve) <= final))
            seeds["measurements_ratio"][seed].append(theirs / max(1, own))
            seeds["latency_ratio"][seed].append(final / curve[-1])
            for column in {"searching", "measuring", "unmeasured"} & row.keys():
                seeds[column][seed].append(row[column])
            for count in PLACES:
                if count * row["tasks"] < len(curve) and isfinite(curve[count * row["tasks"]]):
                    seeds[f"after {count}"][seed].append(curve[count * row["tasks"]] / final)
        # A share may be 0.
        average = {name: mean if name == "reached" else geometric_mean for name in seeds}
        means = {name: interval([average[name](values) for values in by.values()]) for name, by in seeds.items()}
        table.append({"system": system, **means})
    return table


def saved(table: Iterable[Mapping[str, Any]], system: str = DATABASE) -> dict[str, Any]:
    """Return the figure that documents quote of a table: what a system saves, once it was run."""
    ratio = next((row.get("measurements_ratio") for row in table if row["system"] == system), None)
    return {"measurements_ratio": ratio["mean"]} if ratio else {}


def first_at(curve: Sequence[float], latency: float, never: int = 0) -> int:
    """Return after how many measurements a curve first has a latency; its end where it never has, `never` at least."""
    return next((count for count, value in enumerate(curve) if value <= latency), max(never, len(curve) - 1))


def interval(values: Sequence[float]) -> dict[str, float | None]:
    """Return the mean and half the width of its 95% interval, which one value does not have."""
    return {"mean": mean(values), "half": 1.96 * stdev(values) / len(values) ** 0.5 if len(values) > 1 else None}
