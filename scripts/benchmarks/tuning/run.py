"""Tuning, measured: stock MetaSchedule, other cost models and tchub on the networks of the papers, side by side.

    python -m scripts.benchmarks tuning --json
    python -m scripts.benchmarks tuning --network bert-tiny --system stock --system tilenet --seed 0 --trials-per-task 2

Each network, system and seed is one run in a process of its own (`rivals.py`; files and row: `runs.py`),
and done once: a benchmark that was killed goes on with the run that it was in. The large networks take the first seed
alone. Afterwards one judge measures every program that was ever its task's best (`judge.py`), the final
databases are compiled and timed beside PyTorch eager and `torch.compile` (`latency.py`), and
`tuning_figures.py` makes the ratios.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import click

from scripts.benchmarks.common import ROOT, finish
from scripts.benchmarks.tuning.figures import compare_rows, curve, slower_than_pytorch, spread, sum_up, table
from scripts.benchmarks.tuning.runs import NETWORKS, NOTE, OURS, SMALL, SYSTEMS, Run, read_json

_HEADLINE = ("time_ratio", "trials_ratio", "latency_ratio_equal_trials", "slower_than_pytorch", "reached", "runs")
# Points of a curve that the document keeps.
_CURVE_POINTS = 60


def plan(networks: Sequence[str], systems: Sequence[str], seeds: Sequence[int], make: Any) -> list[Run]:
    """Runs in their order: seed by seed, cheap networks first, the systems of a network side by side."""
    return [
        make(network, system, seed)
        for seed in seeds
        for network in sorted(networks, key=NETWORKS.index)
        if network in SMALL or seed == seeds[0]
        for system in systems
    ]


def child(script: str, arguments: Sequence[str], log: Path, home: Path) -> bool:
    """Run a module of this folder in a process of its own; its notes are passed on, all else goes to the log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", f"scripts.benchmarks.tuning.{script}", *arguments]
    with log.open("w") as stderr:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            cwd=ROOT,
            env=os.environ | {"TCHUB_HOME": str(home)},
        )
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(NOTE):
                click.echo(f"{time.strftime('%H:%M:%S')} {line.removeprefix(NOTE).rstrip()}", err=True)
            else:
                stderr.write(line)
        failed = process.wait() != 0
    if failed:
        last = (log.read_text(errors="replace").strip().splitlines() or ["no message"])[-1]
        click.echo(f"{script} failed: {last[:300]} (all of it in {log})", err=True)
    return not failed


def do_runs(runs: Sequence[Run], home: Path, minutes: float | None) -> None:
    """Do what is not done; nothing new is begun once the minutes have passed."""
    end = time.monotonic() + 60 * (minutes if minutes is not None else float("inf"))
    left = [run for run in runs if run.row() is None]
    for number, run in enumerate(left, 1):
        if time.monotonic() > end:
            click.echo(f"time is up: {len(left) - number + 1} runs are left", err=True)
            return
        click.echo(f"{time.strftime('%H:%M:%S')} run {number} of {len(left)}: {run.label}", err=True)
        child("rivals", run.arguments(), run.work / "logs" / f"{run.folder.parent.name}-{run.folder.name}", home)


def do_judging(runs: Sequence[Run], home: Path) -> None:
    """Judge the programs of every network; what is judged already costs one look."""
    for network, same in groupby(sorted(runs, key=lambda run: run.network), key=lambda run: run.network):
        texts = [run.arguments()[0] for run in same]
        work = runs[0].work
        if not child("judge", [str(work), network, *texts], work / "logs" / f"judge-{network}", home):
            raise click.ClickException(f"the programs of {network} could not be judged; run it again to go on")


def do_latencies(runs: Sequence[Run], home: Path) -> list[dict[str, Any]]:
    """End-to-end latencies of every network and seed, timed anew when a system joined."""
    found = []
    for (network, seed), group in groupby(
        sorted(runs, key=lambda run: (run.network, run.seed)), key=lambda run: (run.network, run.seed)
    ):
        same = list(group)
        path = same[0].work / network / f"latency-{seed}-{same[0].trials}.json"
        names = {run.system for run in same}
        if not (path.is_file() and names <= set(read_json(path)["latency"])):
            arguments = [str(path), network, *(run.arguments()[0] for run in same)]
            if not child("latency", arguments, same[0].work / "logs" / f"latency-{network}-{seed}", home):
                continue
        found.append({"network": network, "seed": seed, **read_json(path)})
    return found


def _thinned(row: dict[str, Any], judged: dict[tuple[str, str], float]) -> list[list[float]]:
    """The curve as [trials, seconds, ms], at most `_CURVE_POINTS` of its points, the last among them."""
    points = curve(row, judged)
    step = max(1, len(points) // _CURVE_POINTS)
    kept = {*range(0, len(points), step), len(points) - 1}
    return [[p.trials, round(p.seconds, 2), 1e3 * p.latency] for i, p in enumerate(points) if i in kept]


def _run_row(row: dict[str, Any], judged: dict[tuple[str, str], float]) -> dict[str, Any]:
    """What the document keeps of a run."""
    kept = ("network", "system", "seed", "trials_per_task", "seconds", "phases", "adaptation", "facts")
    failed = sum(latency is None for _, _, latency, _ in row["trajectory"])
    facts = {"tasks": len(row["tasks"]), "trials": len(row["trajectory"]), "failed": failed}
    return {name: row[name] for name in kept} | facts | {"curve": _thinned(row, judged)}


def _latency_row(found: dict[str, Any]) -> dict[str, Any]:
    medians = {name: 1e3 * facts["median"] for name, facts in found["latency"].items()}
    wrong = [name for name, check in found["checks"].items() if not check["ok"]]
    facts = {"network": found["network"], "seed": found["seed"], "errors": found["errors"], "wrong_output": wrong}
    return facts | {"median_ms": medians}


def _failed_share(rows: Sequence[dict[str, Any]], system: str) -> float:
    """Programs of a system that failed: on a machine too busy for its time-outs, a system is not judged but starved."""
    outcomes = [latency is None for row in rows if row["system"] == system for _, _, latency, _ in row["trajectory"]]
    return sum(outcomes) / max(1, len(outcomes))


def figures(
    runs: Sequence[Run], timed: list[dict[str, Any]], judged: dict[tuple[str, str], float]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Summary and details of everything that is done."""
    rows = [row for run in runs if (row := run.row())]
    systems = {}
    pairs = compare_rows(rows, judged)
    for name, found in pairs.items():
        systems[name] = sum_up(found) | {"slower_than_pytorch": slower_than_pytorch(name, timed)}
    summary = {key: systems[OURS][key] for key in _HEADLINE} if OURS in systems else {}
    wall = {
        name: spread([row["seconds"]["tuning"] for row in rows if row["system"] == name])
        for name in dict.fromkeys(row["system"] for row in rows)
    }
    details = {
        "systems": {name: system.words for name, system in SYSTEMS.items() if name in wall},
        "tables": {name: table(found) for name, found in pairs.items()},
        "wall_seconds": wall,
        "failed_share": {name: _failed_share(rows, name) for name in wall},
        "latency": [_latency_row(found) for found in timed],
        "runs": [_run_row(row, judged) for row in rows],
        "not_done": [run.label for run in runs if run.row() is None],
    }
    return summary | {"systems": systems}, details


@click.command()
@click.option("--network", "networks", multiple=True, default=NETWORKS, show_default=True, type=click.Choice(NETWORKS))
@click.option("--system", "systems", multiple=True, type=click.Choice(list(SYSTEMS)), help="All but tlp if not given.")
@click.option("--seed", "seeds", multiple=True, type=int, default=(0, 1, 2), show_default=True)
@click.option("--trials-per-task", default=16, show_default=True, type=click.IntRange(1))
@click.option("--tlp", help="Checkpoint of the system tlp, by name or folder: none ships for this CPU.")
@click.option("--minutes", type=float, help="Begin no new run after so long.")
@click.option("--work", default=ROOT / "runs" / "tuning", show_default=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True)
def main(
    networks: tuple[str, ...], systems: tuple[str, ...], seeds: tuple[int, ...], trials_per_task: int, tlp: str | None,
    minutes: float | None, work: Path, as_json: bool,
) -> None:  # fmt: skip
    """Tune with every system and write docs/benchmarks/tuning.json."""
    if "tlp" in systems and tlp is None:
        raise click.UsageError("the system tlp needs a checkpoint: --tlp")
    started, work = time.time(), work.resolve()
    chosen = systems or [name for name in SYSTEMS if name != "tlp" or tlp]
    runs = plan(networks, chosen, seeds, lambda n, s, seed: Run(n, s, seed, trials_per_task, work, tlp))
    home = work / "home"
    do_runs(runs, home, minutes)
    done = [run for run in runs if run.row()]
    if not done:
        raise click.ClickException("no run is done")
    do_judging(done, home)
    timed = do_latencies(done, home)
    from tchub.hub.device.detect import detect_local

    from scripts.benchmarks.tuning.judge import latencies
    from scripts.benchmarks.tuning.runs import THREADS

    summary, details = figures(runs, timed, latencies(work, detect_local(THREADS)))
    finish("tuning", summary, details, list(seeds), as_json, started)


if __name__ == "__main__":
    main()
