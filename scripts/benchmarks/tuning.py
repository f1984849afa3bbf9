"""Whole networks, tuned with one cost model after another: one call of `hub.tune` each, in a fresh process.

    python -m scripts.benchmarks tuning --json
    python -m scripts.benchmarks tuning --network bert-tiny --system stock --system tilenet

Nothing but the cost model is chosen: workers, tasks, scheduler and budget are the same, no run knows of another, and
the search is the one that `tune` takes for the model. That is tchub's search over decisions, which begins with the
schedules in the wheel, for TileNet and TCL; it is MetaSchedule's evolutionary search for the others, whose models do
not read decisions. The checkpoints are those of this machine's device family.
`tilenet/metaschedule` is the control: TileNet's scores in MetaSchedule's search.

A run's curve is the sum over tasks of weight * best latency so far, by the run's own measurements, against trials and
against seconds of tuning (import, task extraction and untuned programs come before that clock). Until a task has a
program of its own, its untuned one counts, which is a hundred times slower: latencies at equal trials are compared
only where every task of both runs has one, for a run that was given fewer trials would have come to each task sooner.
An operator that can be computed in several ways counts by the fastest that the run knew by then, as a run compiles it
that ends there.
"""

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import geometric_mean
from typing import Any, NamedTuple

import click

from scripts.benchmarks.common import (
    CLOCK,
    Clock,
    Document,
    Journal,
    benchmark,
    in_process,
    lacking,
    note,
    on_family,
    work_option,
)
from scripts.benchmarks.rivals import NETWORKS

REFERENCE, OURS, RANDOM = "stock", "tilenet", "none"
# By their titles: architectures, of which the checkpoint of this machine's device family is taken, and what has none;
# after a slash: the search engine, where it is not the model's own.
SYSTEMS = {
    OURS: "TileNet",
    REFERENCE: "XGBoost from nothing",
    "tcl": "TCL",
    "tenset-mlp": "TenSet-MLP",
    RANDOM: "random choice",
    f"{OURS}/metaschedule": "TileNet, MetaSchedule's search",
}
TRIALS, THREADS = 500, 1
# Besides the end: where a model that knows something already is ahead.
EARLY = (64, 128)
# Near the reference's final sum: its last gains are of the size of the noise.
NEAR = 1.05
RATIOS = (
    *("trials_ratio", "time_ratio", "trials_ratio_near", "time_ratio_near", "latency_ratio_equal_trials"),
    *(f"latency_ratio_{trials}_trials" for trials in EARLY),
    "network_ratio",
)
# Points of a curve that the document keeps.
MOST_POINTS = 60

Row = Mapping[str, Any]


class Point(NamedTuple):
    """A curve after some trials: seconds of tuning, the sum of the tasks in milliseconds, tasks without a program."""

    trials: int
    seconds: float
    ms: float
    lacking: int


def tuned(network: str, system: str, threads: int, trials: int, seed: int, folder: Path) -> dict[str, Any]:
    """Tune a network from nothing with a system; for a process of its own."""
    from tchub import hub
    from tchub.hub.search.settings import SearchSettings

    name, _, engine = system.partition("/")
    checkpoint = name if name in (REFERENCE, RANDOM) else f"{name}-{hub.detect_local().device.family}"
    shutil.rmtree(folder, ignore_errors=True)  # cut short: a resumed run is another run
    result = hub.tune(
        network, checkpoint=checkpoint, trials=trials, threads=threads, seed=seed, reuse=False, out=folder,
        search=SearchSettings(engine=engine or "auto"),
    )  # fmt: skip
    run = result.report["runs"]["tuned"]
    points = [Point(p["trial"], round(p["seconds"], 3), 1e3 * p["latency"], p["lacking"]) for p in run["curve"]]
    tasks = sum(task["weight"] > 0 for task in run["tasks"])
    if (untuned := run["sum_of_tasks_untuned"]) is not None:
        points.insert(0, Point(0, 0.0, 1e3 * untuned, tasks))
    return {
        **{name: run[name] for name in ("model", "failed")},
        "spent": run["trials"],
        "seconds": round(run["tuning_seconds"], 1),
        "phases": {name: round(run["phases"][name], 1) for name in ("search", "model", "measure")},
        "tasks": tasks,
        "sum_of_tasks_ms": 1e3 * run["sum_of_tasks"],
        "ms": {name: 1e3 * median for name, median in result.latency.items()},
        "curve": points,
    }


# Figures ---------------------------------------------------------------------------------------------


def points_of(row: Row) -> list[Point]:
    """Return the curve of a run."""
    return [Point(*point) for point in row["curve"]]


def reach(points: Iterable[Point], ms: float) -> Point | None:
    """Return the first point after a trial that is at least as good as `ms`; None: never."""
    return next((point for point in points if point.trials and point.ms <= ms), None)


def until(row: Row, ms: float) -> tuple[int, float]:
    """Return the trials and the seconds until a sum of `ms`; where a run never has it, all that it spent."""
    point = reach(points_of(row), ms)
    return (point.trials, point.seconds) if point else (row["spent"], row["seconds"])


def after(row: Row, trials: int) -> float | None:
    """Return the sum of the tasks after so many trials; None where it ended before, or a task has no program."""
    last = [point for point in points_of(row) if point.trials <= trials][-1:]
    known = last and row["spent"] >= trials and not last[0].lacking
    return last[0].ms if known else None


def thin(points: Sequence[Point], most: int = MOST_POINTS) -> list[Point]:
    """Return at most so many points of a curve: where it falls, and its two ends."""
    falls = [point for before, point in pairwise(points) if point.ms < before.ms]
    kept = list(dict.fromkeys([*points[:1], *falls, *points[-1:]]))
    if len(kept) <= most:
        return kept
    return [kept[round(i * (len(kept) - 1) / (most - 1))] for i in range(most)]


def versus(row: Row, reference: Row) -> dict[str, Any]:
    """Return one run beside the reference's of the same network and seed; a ratio over 1: the run is ahead.

    Where the run never has the latency that the reference ends with, all that it spent stands for the trials and the
    seconds until then: `reached` is false, and these two ratios are upper bounds.

    Returns:
        `trials_ratio`, `time_ratio`: the reference's trials and seconds until its final sum over the run's until it has
        the same; `..._near`: until that plus 5%; `latency_ratio_...`: the reference's sum over the run's after as many
        trials, None where a task has no program yet; `network_ratio`: of the compiled networks' latencies.
    """
    final = points_of(reference)[-1].ms
    result: dict[str, Any] = {"reached": reach(points_of(row), final) is not None}
    for suffix, goal in (("", final), ("_near", NEAR * final)):
        for name, mine, theirs in zip(("trials", "time"), until(row, goal), until(reference, goal), strict=True):
            result[f"{name}_ratio{suffix}"] = theirs / mine
    ends = {"equal": min(row["spent"], reference["spent"])} | {str(trials): trials for trials in EARLY}
    pairs = {name: (after(reference, end), after(row, end)) for name, end in ends.items()}
    return {
        **result,
        **{f"latency_ratio_{name}_trials": a / b if a and b else None for name, (a, b) in pairs.items()},
        "network_ratio": reference["ms"]["tuned"] / row["ms"]["tuned"],
    }


def mean(values: Iterable[float | None]) -> float | None:
    """Return the geometric mean of those that are known; None: of none."""
    known = [value for value in values if value is not None]
    return geometric_mean(known) if known else None


def table(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return a row for each network and system: geometric means over its seeds; no ratio without a reference."""
    known = {(row["network"], row["system"], row["seed"]): row for row in rows}
    result = []
    for network, system in dict.fromkeys((row["network"], row["system"]) for row in rows):
        same = [row for row in rows if (row["network"], row["system"]) == (network, system)]
        pairs = [(row, known.get((network, REFERENCE, row["seed"]))) for row in same]
        compared = [versus(row, other) for row, other in pairs if other and system != REFERENCE]
        result.append(
            {"network": network, "system": system, "seeds": [row["seed"] for row in same]}
            | {name: mean(row[name] for row in same) for name in ("spent", "seconds", "sum_of_tasks_ms")}
            | {"network_ms": mean(row["ms"]["tuned"] for row in same), "compared": len(compared)}
            | {"reached": sum(row["reached"] for row in compared)}
            | {name: mean(row[name] for row in compared) for name in RATIOS}
        )
    return result


def systems(networks: Sequence[Row]) -> list[dict[str, Any]]:
    """Return a row for each system beside the reference: geometric means over the networks that both tuned."""
    result = []
    for system in SYSTEMS:
        same = [row for row in networks if row["system"] == system and row["compared"]]
        if same:
            counts = {name: sum(row[name] for row in same) for name in ("compared", "reached")}
            means = {name: mean(row[name] for row in same) for name in RATIOS}
            result.append({"system": system, "networks": len(same)} | counts | means)
    return result


def figures(rows: Sequence[Row]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the summary, which is that of tchub's own choice of a model, and the details.

    `_held_out` are the figures over the networks of which neither a checkpoint nor a schedule has learnt.
    """
    from tchub.zoo.corpus import HELD_OUT

    networks = table(rows)
    compared = systems(networks)
    unseen = systems([row for row in networks if row["network"] in HELD_OUT])
    all_of_them, those = (next((row for row in part if row["system"] == OURS), {}) for part in (compared, unseen))
    named = {f"{name}_held_out": value for name, value in those.items() if name != "system"}
    summary = {"networks": 0} | all_of_them | named
    runs = [dict(row) | {"curve": [point[:3] for point in thin(points_of(row))]} for row in rows]
    return summary, {"systems": compared, "systems_held_out": unseen, "table": networks, "runs": runs}


def measure(
    family: str, networks: Sequence[str], chosen: Sequence[str], seeds: Sequence[int], clock: Clock, work: Path
) -> Document:
    """Tune what is not in the journal of `work` yet, on a machine of the device family that is asked for."""
    on_family(family)
    work = work.resolve()
    os.environ["TCHUB_HOME"] = str(work / "home")
    journal, rows = Journal(work / "results.jsonl"), []
    # What the README shows comes first, so that a benchmark that is cut short has it.
    first = [system for system in chosen if system in (OURS, REFERENCE)]
    parts = (first, [system for system in chosen if system not in first])
    plan = [(network, system, seed) for seed in seeds for part in parts for network in networks for system in part]
    for network, system, seed in plan:
        key = {"network": network, "system": system, "threads": THREADS, "trials": TRIALS, "seed": seed}
        name = "-".join(map(str, key.values())).replace("/", "-")

        def run(key: dict[str, Any] = key, name: str = name) -> dict[str, Any]:
            note(name)
            return in_process(tuned, *key.values(), work / name, log=work / f"{name}.log")

        row = journal.get(run, clock, **key)
        rows += [row] if row else []
    if not rows:
        raise click.ClickException("no run is done")
    summary, details = figures(rows)
    return summary, details | {"not_done": lacking(len(plan) - len(rows), len(plan), "runs")}, seeds


def command(name: str, family: str) -> click.Command:
    """Return the command that makes the table of a device family."""

    @benchmark(
        name,
        click.option("--network", "networks", multiple=True, default=NETWORKS, show_default=True),
        click.option("--system", "chosen", multiple=True, default=tuple(SYSTEMS), type=click.Choice(list(SYSTEMS))),
        click.option("--seed", "seeds", multiple=True, type=int, default=(0,), show_default=True),
        CLOCK,
        work_option(name),
    )
    def run(**options: Any) -> Document:
        """Tune networks with every system and write the table to docs/benchmarks."""
        return measure(family, **options)

    return run


main = command("tuning", "epyc")
tuning_intel = command("tuning_intel", "xeon")  # another maker's CPU
