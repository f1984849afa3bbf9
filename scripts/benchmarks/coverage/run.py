"""How many networks tune, the first time: each as a user brings it, tuned with a few trials in one shared home.

    python -m scripts.benchmarks coverage --json
    python -m scripts.benchmarks coverage --only gpt2 --only unet.onnx
    python -m scripts.benchmarks coverage --check-only

Each network (`networks.py`) is tuned by `hub.tune` in a process of its own: exported,
imported, compiled and compared with the original untuned, searched, compiled again, compared again, and timed beside
PyTorch. A run that was killed goes on with the network that it was in: what is done stands in a journal. Only a run
over all networks, with tuning, writes docs/benchmarks/coverage.json.
"""

import json
import os
import shutil
import signal
import sqlite3
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import click

from scripts.benchmarks.common import Document, Journal, benchmark, in_process, note, work_option


def run_network(name: str, work: Path, check_only: bool) -> dict[str, Any]:
    """Tune one network in a process of its own; a crash or a time-out is a row too."""
    folder = work / "networks" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    start = time.monotonic()
    try:
        facts = in_process(row_of, name, folder, check_only, log=folder / "log.txt")
    except click.ClickException as error:
        facts = {"name": name, "status": TRACEBACK, "error": error.message}
    seconds = round(time.monotonic() - start, 1)
    note(f"{name}: {facts['status']}, {seconds:.0f} s {facts.get('error', '')}".rstrip())
    return facts | {"process_seconds": seconds}


def all_rows(names: Sequence[str], work: Path, check_only: bool) -> Iterator[dict]:
    """A row a network; those in the journal are not done again."""
    journal = journal_of(work, check_only)
    for name in names:
        row = journal.get(lambda name=name: run_network(name, work, check_only), name=name)
        yield row | {"error": row["error"].replace(f"{work / 'networks' / name}/", "")} if "error" in row else row


def journal_of(work: Path, check_only: bool) -> Journal:
    """The rows of all networks, by how they were tried."""
    return Journal(work / ("checks.jsonl" if check_only else f"journal-{TRIALS}.jsonl"))


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Counts by status and family.

    A network that passes but whose output can not show an error, e.g. a constant, is counted in `output_unchecked` too.
    """
    counts = Counter(row["status"] for row in rows)
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
        "passed_by_family": families,
        "not_passed": {row["name"]: row["error"] for row in rows if row["status"] != PASSED},
    }


PASSED, REFUSED, FAILED, TRACEBACK = "passed", "refused_before_measuring", "failed_after_measuring", "traceback"
TRIALS = 8
TIMEOUT = 600  # seconds that a network may take


def tuned(source: Any, arguments: dict[str, Any], name: str, folder: Path) -> dict[str, Any]:
    """Tune as a user does, with the defaults; returns what the report says."""
    from tchub import hub

    result = hub.tune(source, name=name, trials=TRIALS, out=folder / "out", **arguments)
    report, run = result.report, result.report["runs"]["tuned"]
    return {
        **{"tasks": len(run["tasks"]), **{key: run[key] for key in ("trials", "failed", "reused")}},
        "latency_ms": {system: 1e3 * seconds for system, seconds in result.latency.items()},
        **_checked(report["output_check"]),
    }


def compiled(source: Any, arguments: dict[str, Any], name: str, threads: int = 1) -> dict[str, Any]:
    """Compile untuned, each other way too, and compare with the original, as `tune` does before it measures."""
    from tchub.hub.device.device_choice import choose_device
    from tchub.hub.networks import LAYOUTS
    from tchub.hub.networks.latency import compare
    from tchub.hub.networks.sources import open_network
    from tchub.hub.networks.transform.prepare import OperatorShape
    from tchub.hub.tuning.builds import first_build
    from tvm.target import Target

    network = open_network(source, name=name, **arguments)
    target = Target(choose_device("local", threads).facts.target)

    def once(one: Any, libraries: Any) -> Any:
        return compare(one, libraries, threads=threads, max_seconds=0.0, min_repeats=1)

    kinds = get_args(OperatorShape)
    firsts = [first_build(variant, target, LAYOUTS[0], once, None, kinds=kinds) for variant in network.variants]
    checks = {f"untuned {n}": check.as_dict() for n, f in enumerate(firsts) for check in f.comparison.checks.values()}
    ways, notes = (sum((getattr(first, name) for first in firsts), ()) for name in ("shapes", "notes"))
    return {"notes": list(notes), "ways": len(ways), **_checked(checks)}


def _checked(checks: dict[str, dict[str, Any]]) -> dict[str, Any]:
    kept = ("verdict", "max_abs_diff", "max_abs_output", "worst", "judged_by", "unchecked")
    return {
        "checked": all(check["checked"] for check in checks.values()),
        "output_check": {name: {key: check[key] for key in kept} for name, check in checks.items()},
    }


def measured(folder: Path) -> int:
    """Programs that were measured so far."""
    path = folder / "out" / "records.sqlite"
    if not path.is_file():
        return 0
    with sqlite3.connect(path) as store:
        return store.execute("SELECT COUNT(*) FROM programs").fetchone()[0]


def row_of(name: str, folder: Path, check_only: bool) -> dict[str, Any]:
    """Bring the network and tune it; an error is a row with its sentence.

    After `TIMEOUT` seconds the process is killed.
    """
    from tchub.zoo.errors import TchubError

    from scripts.benchmarks.coverage.networks import networks

    signal.alarm(TIMEOUT)
    network = networks()[name]
    facts: dict[str, Any] = {"name": name, "family": network.family, "brought": network.brought}
    facts["load_at_start"] = round(os.getloadavg()[0], 1)
    source, arguments = network.bring(folder)
    start = time.monotonic()
    try:
        if check_only:
            facts |= compiled(source, arguments, name)
        else:
            facts |= tuned(source, arguments, name, folder)
        facts["status"] = PASSED
    except TchubError as error:
        facts |= {"status": FAILED if measured(folder) else REFUSED, "error": error.message, "remedy": error.remedy}
        facts |= {"kind": type(error).__name__, "operator": error.fields.get("operator")}
    except Exception as error:
        facts |= {"status": TRACEBACK, "error": f"{type(error).__name__}: {error}"[:300]}
        traceback.print_exc()
    signal.alarm(0)
    return facts | {"seconds": round(time.monotonic() - start, 1)}


@benchmark(
    "coverage",
    click.option("--only", "chosen", multiple=True, metavar="NAME", help="These networks alone."),
    click.option("--done", is_flag=True, help="Run nothing: write what the journal holds, and name what was not run."),
    click.option("--check-only", is_flag=True, help="Compile and compare with the original, without tuning."),
    work_option("coverage"),
)
def main(chosen: tuple[str, ...], done: bool, check_only: bool, work: Path) -> Document | None:
    """Tune every network and write docs/benchmarks/coverage.json."""
    from scripts.benchmarks.coverage.networks import networks

    known = networks()
    names = chosen or tuple(known)
    if done:
        tried = {row["name"] for row in journal_of(work, check_only).rows()}
        names = tuple(name for name in names if name in tried)
    os.environ["TCHUB_HOME"] = str(work.resolve() / "home")
    rows = list(all_rows(names, work.resolve(), check_only))
    summary = summarise(rows) | {"not_run": [name for name in known if name not in names]}
    if chosen or check_only:
        click.echo(json.dumps(summary, indent=2))
        return None
    return summary, {"trials": TRIALS, "networks": rows}, [0]
