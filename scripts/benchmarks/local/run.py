"""Targets of one machine that differ for true: what a model of another target, or of another CPU, is worth.

    python -m scripts.benchmarks local --json
    python -m scripts.benchmarks local --network bert-tiny --target v2-1 --source epyc --work DIR

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
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

import click

from scripts.benchmarks.common import Clock, Document, benchmark, lacking, note, work_option
from scripts.benchmarks.local.steps import (
    OTHER,
    OWN,
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


def plan(
    networks: Sequence[str], targets: Sequence[str], sources: Sequence[str], seeds: Sequence[int], make: Any
) -> list[LocalRun]:
    """Runs in their order: what another target learns from comes first; a network is whole before the next begins."""
    needed = {TARGETS[target].other for target in targets} if OTHER in sources else set()
    pairs = [(target, OWN) for target in TARGETS if target in needed]
    pairs += [(target, source) for source in SOURCES if source in sources for target in TARGETS if target in targets]
    return [make(n, target, source, s) for s in seeds for n in networks for target, source in dict.fromkeys(pairs)]


def do_runs(runs: Sequence[LocalRun], clock: Clock) -> None:
    """Do what is not done; nothing new is begun once the time is over."""
    left = [run for run in runs if run.row() is None]
    for number, run in enumerate(left, 1):
        if clock.is_over:
            note(f"time is up: {len(left) - number + 1} runs are left")
            return
        note(f"run {number} of {len(left)}: {run.label}")
        row = do_run(run)["adapt"]
        note(f"{row['programs']} programs, pairwise {row['before']:.3f} -> {row['after']:.3f}, {row['decision']}")


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


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["network"], row["target"], row["seed"]


@benchmark(
    "local",
    click.option("--network", "networks", multiple=True, default=NETWORKS, show_default=True),
    click.option("--target", "targets", multiple=True, default=tuple(TARGETS), type=click.Choice(list(TARGETS))),
    click.option("--source", "sources", multiple=True, default=tuple(SOURCES), type=click.Choice(list(SOURCES))),
    click.option("--seed", "seeds", multiple=True, type=int, default=(0,), show_default=True),
    click.option("--minutes", type=float, help="Begin no new run after so long."),
    work_option("local"),
)
def main(
    networks: tuple[str, ...],
    targets: tuple[str, ...],
    sources: tuple[str, ...],
    seeds: tuple[int, ...],
    minutes: float | None,
    work: Path,
) -> Document:
    """Adapt and tune for every target from every source, and write docs/benchmarks/local.json."""
    work = work.resolve()
    os.environ["TCHUB_HOME"] = str(work / "home")  # adapted models and measurements of the benchmark stay with it

    make = partial(LocalRun, work)
    do_runs(plan(networks, targets, sources, seeds, make), Clock(minutes))
    # The document is of everything that is kept with these settings, whatever part of it was asked for now.
    runs = plan(tuple(dict.fromkeys((*NETWORKS, *networks))), tuple(TARGETS), tuple(SOURCES), seeds, make)
    done = {run: row for run in runs if (row := run.row())}
    if not done:
        raise click.ClickException("no run is done")
    order = sorted(done, key=_key_of)
    latencies = {key: judge(list(group)) for key, group in groupby(order, key=_key_of)}
    rows = [table_row(row, latencies[_key_of(run)], further(run)) for run, row in done.items()]
    planned, left = (Counter(run.network for run in some) for some in (runs, [run for run in runs if run not in done]))
    details = {
        "targets": {name: target.text for name, target in TARGETS.items() if name in {row["target"] for row in rows}},
        "sources": {name: text for name, text in SOURCES.items() if name in {row["source"] for row in rows}},
        "settings": SETTINGS,
        "rows": rows,
        "runs": [_without_paths(row) for row in done.values()],
        "judged": list(latencies.values()),
        "not_done": [text for name in planned for text in lacking(left[name], planned[name], f"runs of {name}")],
    }
    return summarise(rows), details, sorted({row["seed"] for row in rows})


def _key_of(run: LocalRun) -> tuple[str, str, int]:
    return run.network, run.target, run.seed


def _without_paths(row: dict[str, Any]) -> dict[str, Any]:
    """A row as others may read it: folders of this machine say nothing there."""
    tune = {name: value for name, value in row["tune"].items() if name != "libraries"}
    paths = ("start", "checkpoint", "corpus")
    return {name: value for name, value in row.items() if name not in paths} | {"tune": tune}
