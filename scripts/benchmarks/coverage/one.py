"""One network of the coverage benchmark, in a process of its own: `python -m scripts.benchmarks.coverage.one`.

Writes `row.json` to the folder; a process that ends without it crashed.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from scripts.benchmarks.coverage.run import FAILED, PASSED, REFUSED, TRACEBACK


def tuned(source: Any, arguments: dict[str, Any], name: str, folder: Path, trials: int) -> dict[str, Any]:
    """Tune as a user does, with the defaults; returns what the report says."""
    from tchub import hub

    result = hub.tune(source, name=name, trials=trials, out=folder / "out", **arguments)
    report, run = result.report, result.report["runs"]["tuned"]
    return {
        **{"tasks": len(run["tasks"]), **{key: run[key] for key in ("trials", "failed", "reused")}},
        "latency_ms": {system: 1e3 * seconds for system, seconds in result.latency.items()},
        **_checked(report["output_check"]),
    }


def compiled(source: Any, arguments: dict[str, Any], name: str, threads: int = 1) -> dict[str, Any]:
    """Compile untuned and compare with the original, as `tune` does before it measures anything."""
    from tchub.hub.device.device_choice import choose_device
    from tchub.hub.networks.latency import compare
    from tchub.hub.networks.prepare import LAYOUTS
    from tchub.hub.networks.sources import open_network
    from tchub.hub.tuning.builds import first_build
    from tvm.target import Target

    network = open_network(source, name=name, **arguments)
    target = Target(choose_device("local", threads).facts.target)

    def once(one: Any, libraries: Any) -> Any:
        return compare(one, libraries, threads=threads, max_seconds=0.0, min_repeats=1)

    firsts = [first_build(variant, target, LAYOUTS[0], once, None) for variant in network.variants]
    checks = {f"untuned {n}": check.as_dict() for n, f in enumerate(firsts) for check in f.comparison.checks.values()}
    return {"notes": [note for first in firsts for note in first.notes], **_checked(checks)}


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


def row_of(name: str, folder: Path, trials: int, check_only: bool) -> dict[str, Any]:
    """Bring the network and tune it; an error is a row with its sentence, and the seconds until it came."""
    from tchub.zoo.errors import TchubError

    from scripts.benchmarks.coverage.networks import networks

    network = networks()[name]
    facts: dict[str, Any] = {"name": name, "family": network.family, "brought": network.brought}
    facts["load_at_start"] = round(os.getloadavg()[0], 1)
    source, arguments = network.bring(folder)
    start = time.monotonic()
    try:
        if check_only:
            facts |= compiled(source, arguments, name)
        else:
            facts |= tuned(source, arguments, name, folder, trials)
        facts["status"] = PASSED
    except TchubError as error:
        facts |= {"status": FAILED if measured(folder) else REFUSED, "error": error.message, "remedy": error.remedy}
        facts |= {"kind": type(error).__name__, "operator": error.fields.get("operator")}
    except Exception as error:
        facts |= {"status": TRACEBACK, "error": f"{type(error).__name__}: {error}"[:300]}
        traceback.print_exc()
    seconds = round(time.monotonic() - start, 1)
    if facts["status"] != PASSED:
        facts["seconds_to_error"] = seconds
    return facts | {"seconds": seconds}


def main() -> None:
    """Write the row of the network that the arguments name."""
    name, folder, trials, *flags = sys.argv[1:]
    row = row_of(name, Path(folder), int(trials), "--check-only" in flags)
    Path(folder, "row.json").write_text(json.dumps(row))


if __name__ == "__main__":
    main()
