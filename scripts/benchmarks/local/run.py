"""Targets of one machine that differ for true: what a model of another target, or of another CPU, is worth.

    python -m scripts.benchmarks local --json

For every network and target (`steps.TARGETS`), TileNet starts from nothing or from the zoo, and learns its own
labels alone or those of another of the targets besides (`steps.SOURCES`). Each is adapted by `hub.adapt` with one
budget to the same candidates, and tunes the network by `hub.tune` with as many trials. The programs that judge an
adaptation are drawn by chance with the run's seed, hence the same for all sources; further programs (`steps.further`),
many more of them, judge start and result once more. At the end one process times the tuned networks of all sources in
turn. A run is done once: a benchmark that was killed goes on where it was, and the document has every run with these
seeds that is there, and names those that are not.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter, itemgetter
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

import click

from scripts.benchmarks.common import CLOCK, Clock, Document, benchmark, do_runs, lacking, work_option
from scripts.benchmarks.local.steps import (
    SCRATCH,
    SETTINGS,
    SOURCES,
    TARGETS,
    LocalRun,
    do_run,
    further,
    judge,
)

NETWORKS = ("bert-tiny", "resnet-18")
# Of the scores on further programs, those that a table has.
GIVEN = ("pairwise", "given_pairwise", "given_mean_top1")


def plan(networks: Sequence[str], seeds: Sequence[int], make: Any) -> list[LocalRun]:
    """Runs in their order: what another target learns from comes first; a network is whole before the next begins."""
    return [make(n, target, source, s) for s in seeds for n in networks for source in SOURCES for target in TARGETS]


def table_row(row: dict[str, Any], latencies: dict[str, Any], scores: dict[str, dict[str, float]]) -> dict[str, Any]:
    """What the page shows of a run; latencies in ms; `scores`: of `further`."""
    adapt, times = row["adapt"], {name: 1e3 * time["median"] for name, time in latencies["latency"].items()}
    low, high = adapt["interval"]
    return {
        **{name: row[name] for name in ("network", "target", "source", "seed")},
        **{name: adapt[name] for name in ("programs", "failed", "measuring_seconds", "learning_seconds")},
        **{name: adapt[name] for name in ("zero_shot_before", "before", "after", "level", "decision")},
        "gain_low": low,
        "gain_high": high,
        "method": adapt["learning"]["method"],
        "further_programs": scores["start"]["programs"],
        **{f"further_{name}_{key}": scores[name][key] for name in scores for key in GIVEN},
        "tuning_seconds": row["tune"]["tuning_seconds"],
        "tuned_ms": times.get(row["source"]),
        "untuned_ms": times.get("untuned"),
    }


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means over networks, targets and seeds; latency ratios are geometric, no pretraining over the source."""
    summary: dict[str, Any] = {"runs": len(rows), "adapted": sum(row["decision"] == "adapted" for row in rows)}
    scratch = {_key(row): row["tuned_ms"] for row in rows if row["source"] == SCRATCH and row["tuned_ms"]}
    for source in SOURCES:
        mine = [row for row in rows if row["source"] == source]
        if not mine:
            continue
        figures = {"zero_shot": "zero_shot_before", "before": "before", "after": "after"}
        further_names = [f"further_{which}_{key}" for which in ("start", "decided") for key in GIVEN]
        figures |= dict(zip(further_names, further_names, strict=True))
        summary |= {f"{source}_{name}": fmean(row[key] for row in mine) for name, key in figures.items()}
        ratios = [scratch[_key(row)] / row["tuned_ms"] for row in mine if row["tuned_ms"] and _key(row) in scratch]
        if ratios and source != SCRATCH:
            summary[f"{source}_latency_ratio"] = geometric_mean(ratios)
    return summary


_key = itemgetter("network", "target", "seed")


@benchmark(
    "local",
    click.option("--network", "networks", multiple=True, default=NETWORKS, show_default=True),
    click.option("--seed", "seeds", multiple=True, type=int, default=(0,), show_default=True),
    CLOCK,
    work_option("local"),
)
def main(networks: tuple[str, ...], seeds: tuple[int, ...], clock: Clock, work: Path) -> Document:
    """Adapt and tune for every target from every source, and write docs/benchmarks/local.json."""
    work = work.resolve()
    os.environ["TCHUB_HOME"] = str(work / "home")  # adapted models and measurements of the benchmark stay with it

    make = partial(LocalRun, work)
    do_runs(plan(networks, seeds, make), clock, do_run)
    # The document is of everything that is kept with these settings, whatever part of it was asked for now.
    runs = plan(tuple(dict.fromkeys((*NETWORKS, *networks))), seeds, make)
    done = {run: row for run in runs if (row := run.row())}
    if not done:
        raise click.ClickException("no run is done")
    key = attrgetter("network", "target", "seed")
    latencies = {one: judge(list(group)) for one, group in groupby(sorted(done, key=key), key=key)}
    rows = [table_row(row, latencies[key(run)], further(run)) for run, row in done.items()]
    planned, left = (Counter(run.network for run in some) for some in (runs, [run for run in runs if run not in done]))
    details = {
        "targets": {name: target.text for name, target in TARGETS.items()},
        "sources": SOURCES,
        "settings": SETTINGS,
        "rows": rows,
        "runs": [_without_paths(row) for row in done.values()],
        "judged": list(latencies.values()),
        "not_done": [text for name in planned for text in lacking(left[name], planned[name], f"runs of {name}")],
    }
    return summarise(rows), details, sorted({row["seed"] for row in rows})


def _without_paths(row: dict[str, Any]) -> dict[str, Any]:
    """A row as others may read it: folders of this machine say nothing there."""
    tune = {name: value for name, value in row["tune"].items() if name != "libraries"}
    paths = ("start", "checkpoint", "corpus")
    return {name: value for name, value in row.items() if name not in paths} | {"tune": tune}
