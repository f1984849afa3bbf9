"""Targets of one machine that differ for true: what a model of another target, or of another CPU, is worth.

    python -m scripts.benchmarks local --json
    python -m scripts.benchmarks local --network bert-tiny --target v2-1 --source epyc --labels 2 --trials 16 --work DIR

For every network and target (`local_runs.TARGETS`), TileNet starts from nothing or from the zoo, and learns its own
labels alone or those of another of the targets besides (`local_runs.SOURCES`). Each is adapted by `hub.adapt` with one
budget to the same candidates, and tunes the network by `hub.tune` with as many trials. The programs that judge an
adaptation are drawn by chance with the run's seed, hence the same for all sources; further programs (`local_further`),
many more of them, judge start and result once more. At the end one process times the tuned networks of all sources in
turn. A run is done once: a benchmark that was killed goes on where it was, and the document has every run with the same
settings and seeds that is there, and names those that are not.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

import click

from scripts.benchmarks.common import ROOT, finish
from scripts.benchmarks.local.runs import OTHER, OWN, SCRATCH, SOURCES, TARGETS, LocalRun
from scripts.benchmarks.local.steps import do_run, further, judge

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


def do_runs(runs: Sequence[LocalRun], minutes: float | None) -> None:
    """Do what is not done; nothing new is begun once the minutes have passed."""
    end = time.monotonic() + 60 * (minutes if minutes is not None else math.inf)
    left = [run for run in runs if run.row() is None]
    for number, run in enumerate(left, 1):
        if time.monotonic() > end:
            click.echo(f"time is up: {len(left) - number + 1} runs are left", err=True)
            return
        began = time.monotonic()
        click.echo(f"{time.strftime('%H:%M:%S')} run {number} of {len(left)}: {run.label}", err=True)
        told = do_run(run)["adapt"]
        gain = f"{told['before']:.3f} -> {told['after']:.3f}, {told['decision']}"
        click.echo(f"  {told['programs']} programs, pairwise {gain}, {time.monotonic() - began:.0f} s", err=True)


def judged(runs: Iterable[LocalRun]) -> dict[tuple[str, str, int], dict[str, Any]]:
    """The latencies of every network, target and seed, by these."""
    found = {}
    for key, group in groupby(sorted(runs, key=_place), key=_place):
        click.echo(f"{time.strftime('%H:%M:%S')} judge: {', '.join(map(str, key))}", err=True)
        found[key] = judge(list(group))
    return found


def missing(runs: Sequence[LocalRun]) -> list[str]:
    """What is not run, in few words: how many runs of each network."""
    of_network = Counter(run.network for run in runs)
    left = Counter(run.network for run in runs if run.row() is None)
    return [f"{count} of {of_network[network]} runs of {network}" for network, count in left.items()]


def _place(run: LocalRun) -> tuple[str, str, int]:
    return run.network, run.target, run.seed


def table_row(row: dict[str, Any], latencies: dict[str, Any], scores: dict[str, dict[str, float]]) -> dict[str, Any]:
    """What the page shows of a run; latencies in ms; `scores`: of `further`."""
    told, times = row["adapt"], latencies["latency"]
    low, high = told["interval"]
    return {
        **{name: row[name] for name in ("network", "target", "source", "seed")},
        "programs": told["programs"],
        "failed": told["failed"],
        "measuring_seconds": told["measuring_seconds"],
        "learning_seconds": told["learning_seconds"],
        "zero_shot_before": told["zero_shot_before"],
        "before": told["before"],
        "after": told["after"],
        "gain_low": low,
        "gain_high": high,
        "level": told["level"],
        "decision": told["decision"],
        "method": told["learning"]["method"],
        "further_programs": scores["start"]["programs"],
        **{f"further_{name}_{key}": scores[name][key] for name in scores for key in GIVEN},
        "tuning_seconds": row["tune"]["tuning_seconds"],
        "tuned_ms": 1e3 * times[row["source"]]["median"] if row["source"] in times else None,
        "untuned_ms": 1e3 * times["untuned"]["median"] if "untuned" in times else None,
    }


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means over networks, targets and seeds; latency ratios are geometric, no pretraining over the source."""
    summary: dict[str, Any] = {"runs": len(rows), "adapted": sum(row["decision"] == "adapted" for row in rows)}
    scratch = {_key(row): row["tuned_ms"] for row in rows if row["source"] == SCRATCH and row["tuned_ms"]}
    for source in SOURCES:
        mine = [row for row in rows if row["source"] == source]
        if not mine:
            continue
        summary[f"{source}_zero_shot"] = fmean(row["zero_shot_before"] for row in mine)
        summary[f"{source}_before"] = fmean(row["before"] for row in mine)
        summary[f"{source}_after"] = fmean(row["after"] for row in mine)
        for name in (f"further_{which}_{key}" for which in ("start", "decided") for key in GIVEN):
            summary[f"{source}_{name}"] = fmean(row[name] for row in mine)
        ratios = [scratch[_key(row)] / row["tuned_ms"] for row in mine if row["tuned_ms"] and _key(row) in scratch]
        if ratios and source != SCRATCH:
            summary[f"{source}_latency_ratio"] = math.exp(fmean(map(math.log, ratios)))
    return summary


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["network"], row["target"], row["seed"]


@click.command()
@click.option("--network", "networks", multiple=True, default=NETWORKS, show_default=True)
@click.option("--target", "targets", multiple=True, default=tuple(TARGETS), type=click.Choice(list(TARGETS)))
@click.option("--source", "sources", multiple=True, default=tuple(SOURCES), type=click.Choice(list(SOURCES)))
@click.option("--seed", "seeds", multiple=True, type=int, default=(0,), show_default=True)
@click.option("--labels", default=8, show_default=True, type=click.IntRange(1), help="To learn from, a task.")
@click.option("--pool", default=64, show_default=True, type=click.IntRange(8), help="Candidates of a task.")
@click.option("--sampler", default="rdu+", show_default=True, help="What picks programs, as for `tchub adapt`.")
@click.option("--method", default="few-shot", show_default=True, help="What learns, as for `tchub adapt`.")
@click.option("--judging", default=24, show_default=True, type=click.IntRange(4), help="Further programs of a task.")
@click.option("--trials", default=64, show_default=True, type=click.IntRange(1), help="Of tuning the network.")
@click.option("--minutes", type=float, help="Begin no new run after so long.")
@click.option("--work", default=ROOT / "runs" / "local", show_default=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True)
def main(
    networks: tuple[str, ...], targets: tuple[str, ...], sources: tuple[str, ...], seeds: tuple[int, ...], labels: int,
    pool: int, sampler: str, method: str, judging: int, trials: int, minutes: float | None, work: Path, as_json: bool,
) -> None:  # fmt: skip
    """Adapt and tune for every target from every source, and write docs/benchmarks/local.json."""
    started, work = time.time(), work.resolve()
    os.environ["TCHUB_HOME"] = str(work / "home")  # adapted models and measurements of the benchmark stay with it

    def make(network: str, target: str, source: str, seed: int) -> LocalRun:
        return LocalRun(network, target, source, seed, labels, trials, pool, sampler, method, judging, work)

    do_runs(plan(networks, targets, sources, seeds, make), minutes)
    # The document is of everything that is kept with these settings, whatever part of it was asked for now.
    runs = plan(tuple(dict.fromkeys((*NETWORKS, *networks))), tuple(TARGETS), tuple(SOURCES), seeds, make)
    done = [run for run in runs if run.row()]
    if not done:
        raise click.ClickException("no run is done")
    latencies = judged(done)
    rows = [table_row(row, latencies[_place(run)], further(run)) for run in done if (row := run.row())]
    details = {
        "targets": {name: target.words for name, target in TARGETS.items() if name in {row["target"] for row in rows}},
        "sources": {name: words for name, words in SOURCES.items() if name in {row["source"] for row in rows}},
        "settings": {"labels": labels, "pool": pool, "sampler": sampler, "method": method, "trials": trials},
        "rows": rows,
        "runs": [_without_paths(run.row() or {}) for run in done],
        "judged": list(latencies.values()),
        "not_done": missing(runs),
    }
    finish("local", summarise(rows), details, sorted({row["seed"] for row in rows}), as_json, started)


def _without_paths(row: dict[str, Any]) -> dict[str, Any]:
    """A row as others may read it: folders of this machine say nothing there."""
    tune = {name: value for name, value in row["tune"].items() if name != "libraries"}
    paths = ("start", "checkpoint", "corpus")
    return {name: value for name, value in row.items() if name not in paths} | {"tune": tune}


if __name__ == "__main__":
    main()
