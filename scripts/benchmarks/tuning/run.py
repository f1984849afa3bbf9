"""Tuning, measured: stock MetaSchedule and tchub on the networks of the papers, side by side.

    python -m scripts.benchmarks tuning --json
    python -m scripts.benchmarks tuning --network bert-tiny --system stock --system tilenet --seed 0

Each network, system and seed is one run in a process of its own (`runs.py`), and done once: a benchmark that was killed
goes on with the run that it was in. The large networks take the first seed alone. Afterwards one judge measures every
program that was ever its task's best, the final databases are compiled and timed beside PyTorch eager and
`torch.compile` (`judge.py`), and `figures.py` makes the ratios.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import click

from scripts.benchmarks.common import CLOCK, Clock, Document, benchmark, do_runs, in_process, read_json, work_option
from scripts.benchmarks.tuning.figures import compare_rows, curve, slower_than_pytorch, sum_up, table
from scripts.benchmarks.tuning.judge import judge, latencies, time_network
from scripts.benchmarks.tuning.runs import NETWORKS, SMALL, SYSTEMS, THREADS, Run, execute

TRIALS = 16  # of a task, in the mean
# Points of a curve that the document keeps.
_CURVE_POINTS = 60


def plan(networks: Sequence[str], systems: Sequence[str], seeds: Sequence[int], work: Path) -> list[Run]:
    """Runs in their order: seed by seed, cheap networks first, the systems of a network side by side."""
    return [
        Run(network, system, seed, TRIALS, work)
        for seed in seeds
        for network in sorted(networks, key=NETWORKS.index)
        if network in SMALL or seed == seeds[0]
        for system in systems
    ]


def do_run(run: Run) -> None:
    """Do a run in a process of its own, whose error is told and no other's end."""
    with suppress(click.ClickException):
        in_process(execute, run, log=run.work / "logs" / f"{run.network}-{run.folder.name}")


def do_judging(runs: Sequence[Run]) -> None:
    """Judge the programs of every network; what is judged already costs one look."""
    for network, same in groupby(sorted(runs, key=lambda run: run.network), key=lambda run: run.network):
        work = runs[0].work
        in_process(judge, work, network, list(same), log=work / "logs" / f"judge-{network}")


def do_latencies(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """End-to-end latencies of every network and seed, timed anew when a system joined."""
    rows = []
    key = attrgetter("network", "seed")
    for (network, seed), group in groupby(sorted(runs, key=key), key=key):
        same = list(group)
        path = same[0].work / network / f"latency-{seed}-{same[0].trials}.json"
        if not (path.is_file() and {run.system for run in same} <= set(read_json(path)["latency"])):
            in_process(time_network, path, network, same, log=same[0].work / "logs" / f"latency-{network}-{seed}")
        rows.append({"network": network, "seed": seed, **read_json(path)})
    return rows


def _thinned(row: dict[str, Any], judged: dict[tuple[str, str], float]) -> list[list[float]]:
    """The curve as [trials, seconds, ms], at most `_CURVE_POINTS` of its points, the last among them."""
    points = curve(row, judged)
    step = max(1, len(points) // _CURVE_POINTS)
    kept = {*range(0, len(points), step), len(points) - 1}
    return [[p.trials, round(p.seconds, 2), 1e3 * p.latency] for i, p in enumerate(points) if i in kept]


def _run_row(row: dict[str, Any], judged: dict[tuple[str, str], float]) -> dict[str, Any]:
    """What the document keeps of a run."""
    kept = ("network", "system", "seed", "trials_per_task", "seconds", "phases", "facts")
    failed = sum(latency is None for _, _, latency, _ in row["trajectory"])
    facts = {"tasks": len(row["tasks"]), "trials": len(row["trajectory"]), "failed": failed}
    return {name: row[name] for name in kept} | facts | {"curve": _thinned(row, judged)}


def _latency_row(found: dict[str, Any]) -> dict[str, Any]:
    medians = {name: 1e3 * facts["median"] for name, facts in found["latency"].items()}
    wrong = [name for name, check in found["checks"].items() if not check["ok"]]
    facts = {"network": found["network"], "seed": found["seed"], "errors": found["errors"], "wrong_output": wrong}
    return facts | {"median_ms": medians}


def figures(
    runs: Sequence[Run], timed: list[dict[str, Any]], judged: dict[tuple[str, str], float]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Summary and details of everything that is done."""
    rows = [row for run in runs if (row := run.row())]
    pairs = compare_rows(rows, judged)
    details = {
        "table": table(pairs),
        "latency": [_latency_row(found) for found in timed],
        "runs": [_run_row(row, judged) for row in rows],
        "not_done": [run.label for run in runs if run.row() is None],
    }
    return (sum_up(pairs) if pairs else {}) | {"slower_than_pytorch": slower_than_pytorch(timed)}, details


@benchmark(
    "tuning",
    click.option("--network", "networks", multiple=True, default=NETWORKS, type=click.Choice(NETWORKS)),
    click.option("--system", "systems", multiple=True, default=tuple(SYSTEMS), type=click.Choice(list(SYSTEMS))),
    click.option("--seed", "seeds", multiple=True, type=int, default=(0, 1, 2), show_default=True),
    CLOCK,
    work_option("tuning"),
)
def main(
    networks: tuple[str, ...], systems: tuple[str, ...], seeds: tuple[int, ...], clock: Clock, work: Path
) -> Document:
    """Tune with every system and write docs/benchmarks/tuning.json."""
    work = work.resolve()
    os.environ["TCHUB_HOME"] = str(work / "home")
    runs = plan(networks, systems, seeds, work)
    do_runs(runs, clock, do_run)
    done = [run for run in runs if run.row()]
    if not done:
        raise click.ClickException("no run is done")
    do_judging(done)
    timed = do_latencies(done)
    from tchub.hub.device.detect import detect_local

    return *figures(runs, timed, latencies(work, detect_local(THREADS))), seeds
