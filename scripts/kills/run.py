"""Some fifty kills at random moments: every run resumes, and the database holds every measurement that finished, once.

    python -m scripts.kills --json

The victim is `session.py`, a real tuning session with real workers. SIGKILL comes at moments drawn by chance:

    tuner    the process that searches; the same command is then given again
    worker   a process that builds or times programs; the tuner must go on by itself
    zygote   the process that workers are forked from; the tuner goes on, or the same command does
    server   an RPC server of three; the tuner must go on with the others
    disk     the file system that holds the run fills up; it is given more room, then the same command again

After each run's end `session.check` compares the database, the log, and what a witness saw finish.
"""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from scripts.benchmarks.common import ROOT, finish
from scripts.kills.kinds import (
    TRIALS,
    Story,
    Victim,
    kill_worker,
    kill_zygote,
    run_disk,
    run_helpers,
    run_servers,
    run_tuner,
)
from scripts.kills.session import check

KINDS = {"tuner": 15, "worker": 15, "zygote": 5, "server": 10, "disk": 10}
KILLS_PER_RUN = 5


def one_run(kind: str, seed: int, kills: int, work: Path) -> dict[str, Any]:
    """One run with its kills; returns what happened and whether all is there."""
    folder = work / f"{kind}-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    story, draw = Story(kind, seed), random.Random(f"{kind}-{seed}")
    if kind == "tuner":
        run_tuner(folder, story, kills, draw)
    elif kind == "disk":
        run_disk(folder, story, kills, draw)
    elif kind == "server":
        run_servers(folder, story, kills, draw)
    else:
        run_helpers(Victim(folder), story, kills, draw, kill_worker if kind == "worker" else kill_zygote)
    verdict = check(folder)
    complete = verdict.ok and verdict.trials == TRIALS
    return asdict(story) | asdict(verdict) | {"complete": complete}


def all_runs(kinds: dict[str, int], work: Path) -> Iterator[dict[str, Any]]:
    """Every run of the plan; those in the journal are not done again."""
    journal = work / "journal.jsonl"
    work.mkdir(parents=True, exist_ok=True)
    known = [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []
    done = {(row["kind"], row["seed"]): row for row in known}
    for kind, kills in kinds.items():
        for seed, start in enumerate(range(0, kills, KILLS_PER_RUN)):
            row = done.get((kind, seed))
            if row is None:
                row = one_run(kind, seed, min(KILLS_PER_RUN, kills - start), work)
                with journal.open("a") as file:
                    file.write(json.dumps(row) + "\n")
            click.echo(f"{time.strftime('%H:%M:%S')} {row}", err=True)
            yield row


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Sums over the runs."""
    sums = {name: sum(row[name] for row in rows) for name in ("kills", "restarts", "lost", "twice", "unlogged")}
    kinds = {kind: sum(row["kills"] for row in rows if row["kind"] == kind) for kind in KINDS}
    return sums | {
        "runs": len(rows),
        "complete": sum(row["complete"] for row in rows),
        "measurements": sum(row["seen"] for row in rows),
        "orphans": sum(row["orphans"] for row in rows),
        "kills_by_kind": kinds,
    }


@click.command()
@click.option("--kind", "kinds", multiple=True, type=click.Choice(list(KINDS)), default=list(KINDS), show_default=True)
@click.option(
    "--kills",
    type=click.IntRange(1),
    help="Of each kind at most; not given: 55 in all, where each disk fills up five times.",
)
@click.option("--work", default=ROOT / "runs" / "kills", show_default=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True)
def main(kinds: tuple[str, ...], kills: int | None, work: Path, as_json: bool) -> None:
    """Kill, resume, compare, and write docs/benchmarks/kills.json."""
    started = time.time()
    rows = list(all_runs({kind: kills or KINDS[kind] for kind in kinds}, work.resolve()))
    seeds = sorted({row["seed"] for row in rows})
    finish("kills", summarise(rows), {"trials_per_run": TRIALS, "runs": rows}, seeds, as_json, started)


if __name__ == "__main__":
    main()
