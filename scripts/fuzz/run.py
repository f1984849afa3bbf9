"""Feed every reader of foreign files with damaged and hostile ones: no crash but a typed error, and no hang.

    python -m scripts.fuzz [--target index --target lock] [--inputs 100000] [--seed 0] [--json]

Each target runs in a process of its own, so that code of other libraries may die there too. What may not be is kept in
`runs/fuzzing/TARGET` and told; a file of a bug that was mended goes to `tests/fuzz_inputs/TARGET`, where the tests read
it for ever.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import click
from filelock import FileLock

from scripts.benchmarks.common import FOLDER, ROOT, finish
from scripts.fuzz.targets import TARGETS

KEPT = ROOT / "runs" / "fuzzing"
# A target that dies this often has told what there is to tell.
_MAX_DEATHS = 20


def fuzz(target: str, inputs: int, seed: int) -> dict[str, Any]:
    """All inputs of a target, in as many processes as die of them; the result of `one.Result`, summed up."""
    folder, first, deaths = KEPT / target, 0, 0
    folder.mkdir(parents=True, exist_ok=True)
    total: dict[str, Any] = {"target": target, "inputs": 0, "accepted": 0, "slowest_ms": 0.0, "seconds": 0.0}
    total |= {"refused": Counter(), "crashes": {}, "hangs": {}}
    while first < inputs and deaths < _MAX_DEATHS:
        part, status = _process(target, inputs, seed, first, folder)
        if part is None:
            deaths, first = deaths + 1, int((folder / "number").read_text()) + 1
            kept = (folder / "current").replace(folder / f"{first - 1}-death")
            total["crashes"][f"the process ended with {status}, {deaths}"] = kept.name
            continue
        total["refused"].update(part["refused"])
        for key in ("crashes", "hangs"):
            total[key] |= part[key]
        for key in ("inputs", "accepted", "seconds"):
            total[key] += part[key]
        total["slowest_ms"] = max(total["slowest_ms"], part["slowest_ms"])
        break
    return total | {"refused": dict(total["refused"].most_common())}


def _process(target: str, inputs: int, seed: int, first: int, folder: Path) -> tuple[dict[str, Any] | None, int]:
    command = [sys.executable, "-m", "scripts.fuzz.one", target, "--folder", str(folder)]
    command += ["--inputs", str(inputs), "--seed", str(seed), "--first", str(first)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        return None, done.returncode
    return json.loads(done.stdout.splitlines()[-1]), 0


@click.command()
@click.option("--target", "targets", multiple=True, type=click.Choice(["all", *TARGETS]), help="Repeat for several.")
@click.option("--inputs", default=100_000, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def main(targets: tuple[str, ...], inputs: int, seed: int, as_json: bool) -> None:
    """Run the targets one after the other and write docs/benchmarks/fuzz.json.

    The rows of targets that are not run again stay.
    """
    started = time.time()
    chosen = list(TARGETS) if not targets or "all" in targets else list(targets)
    sys.argv[1:] = ["--inputs", str(inputs), "--seed", str(seed)]  # what makes every row again, whichever is new
    found: list[dict[str, Any]] = []
    for name in chosen:
        found.append(fuzz(name, inputs, seed))
        told = ", ".join(f"{count} {kind}" for kind, count in found[-1]["refused"].items())
        click.echo(f"{name}: {found[-1]['inputs']} inputs, {found[-1]['accepted']} accepted, {told}", err=True)
        with FileLock(KEPT / ".writing"):
            rows = {row["target"]: row for row in (*_kept(), found[-1])}
            listed = [rows[target] for target in TARGETS if target in rows]
            finish("fuzz", summary(listed), {"targets": listed}, [seed], as_json and name == chosen[-1], started)
    if bad := [row["target"] for row in found if row["crashes"] or row["hangs"]]:
        raise SystemExit(f"crashes or hangs of {', '.join(bad)}: see {KEPT.relative_to(ROOT)}")


def _kept() -> list[dict[str, Any]]:
    path = FOLDER / "fuzz.json"
    return json.loads(path.read_text())["details"]["targets"] if path.exists() else []


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """All targets together."""
    return {
        "targets": len(rows),
        "inputs": sum(row["inputs"] for row in rows),
        "fewest_inputs": min(row["inputs"] for row in rows),
        "accepted": sum(row["accepted"] for row in rows),
        "refused": sum(sum(row["refused"].values()) for row in rows),
        "crashes": sum(len(row["crashes"]) for row in rows),
        "hangs": sum(len(row["hangs"]) for row in rows),
        "slowest_ms": max(row["slowest_ms"] for row in rows),
    }


if __name__ == "__main__":
    main()
