"""How many networks tune, the first time: each as a user brings it, tuned with a few trials in one shared home.

    python -m scripts.benchmarks coverage --json
    python -m scripts.benchmarks coverage --only gpt2 --only unet.onnx
    python -m scripts.benchmarks coverage --check-only

Each network (`networks.py`) is tuned by `hub.tune` in a process of its own (`one.py`): exported,
imported, compiled and compared with the original untuned, searched, compiled again, compared again, and timed beside
PyTorch. A run that was killed goes on with the network that it was in: what is done stands in a journal. Only a run
over all networks, with tuning, writes docs/benchmarks/coverage.json.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import click

from scripts.benchmarks.common import ROOT, Document, Journal, benchmark, note, work_option

PASSED, REFUSED, FAILED, TRACEBACK = "passed", "refused_before_measuring", "failed_after_measuring", "traceback"
TIMEOUT = 600.0  # seconds that a network may take


def run_network(name: str, work: Path, trials: int, check_only: bool) -> dict[str, Any]:
    """Tune one network in a process of its own; a crash or a time-out is a row too."""
    folder = work / "networks" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    row, log = folder / "row.json", folder / "log.txt"
    command = [sys.executable, "-m", "scripts.benchmarks.coverage.one", name, str(folder), str(trials)]
    start = time.monotonic()
    command += ["--check-only"] * check_only
    home = os.environ | {"TCHUB_HOME": str(work / "home")}
    with log.open("w") as output:
        process = {"cwd": ROOT, "stdout": output, "stderr": output, "env": home, "timeout": TIMEOUT}
        try:
            ending = f"exit code {subprocess.run(command, check=False, **process).returncode}"
        except subprocess.TimeoutExpired:
            ending = f"killed after {TIMEOUT:g} s"
    seconds = round(time.monotonic() - start, 1)
    if row.is_file():
        facts = json.loads(row.read_text())
    else:
        last = (log.read_text(errors="replace").strip().splitlines() or ["no message"])[-1]
        facts = {"name": name, "status": TRACEBACK, "error": f"{ending}: {last[:300]}", "seconds_to_error": seconds}
    note(f"{name}: {facts['status']}, {seconds:.0f} s {facts.get('error', '')}".rstrip())
    return facts | {"process_seconds": seconds}


def all_rows(names: Sequence[str], work: Path, trials: int, check_only: bool) -> Iterator[dict]:
    """A row a network; those in the journal are not done again."""
    journal = journal_of(work, trials, check_only)
    for name in names:
        row = journal.get(lambda name=name: run_network(name, work, trials, check_only), name=name)
        yield row | {"error": row["error"].replace(f"{work / 'networks' / name}/", "")} if "error" in row else row


def journal_of(work: Path, trials: int, check_only: bool) -> Journal:
    """The rows of all networks, by how they were tried."""
    return Journal(work / ("checks.jsonl" if check_only else f"journal-{trials}.jsonl"))


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Counts by status and family, and how soon a network that does not pass is told so.

    A network that passes but whose output can not show an error, e.g. a constant, is counted in `output_unchecked` too.
    """
    counts = Counter(row["status"] for row in rows)
    errors = [row["seconds_to_error"] for row in rows if row["status"] != PASSED]
    families: dict[str, list[int]] = {}
    for row in rows:
        family = families.setdefault(row.get("family", "unknown"), [0, 0])
        family[0] += row["status"] == PASSED
        family[1] += 1
    return {
        "networks": len(rows),
        "passed": counts[PASSED],
        "refused_before_measuring": counts[REFUSED],
        "failed": counts[FAILED],
        "tracebacks": counts[TRACEBACK],
        "output_unchecked": sum(row["status"] == PASSED and not row["checked"] for row in rows),
        "median_seconds_to_first_error": median(errors) if errors else None,
        "median_seconds": median(row["process_seconds"] for row in rows),
        "passed_by_family": families,
        "not_passed": {row["name"]: row["error"] for row in rows if row["status"] != PASSED},
    }


@benchmark(
    "coverage",
    click.option("--only", "chosen", multiple=True, metavar="NAME", help="These networks alone."),
    click.option("--done", is_flag=True, help="Run nothing: write what the journal holds, and name what was not run."),
    click.option("--check-only", is_flag=True, help="Compile and compare with the original, without tuning."),
    click.option("--trials", default=8, show_default=True, type=click.IntRange(1)),
    work_option("coverage"),
)
def main(chosen: tuple[str, ...], done: bool, check_only: bool, trials: int, work: Path) -> Document | None:
    """Tune every network and write docs/benchmarks/coverage.json."""
    from scripts.benchmarks.coverage.networks import networks

    known = networks()
    names = chosen or tuple(known)
    if done:
        tried = {row["name"] for row in journal_of(work, trials, check_only).rows()}
        names = tuple(name for name in names if name in tried)
    rows = list(all_rows(names, work.resolve(), trials, check_only))
    summary = summarise(rows) | {"not_run": [name for name in known if name not in names]}
    if chosen or check_only:
        click.echo(json.dumps(summary, indent=2))
        return None
    return summary, {"trials": trials, "networks": rows}, [0]
